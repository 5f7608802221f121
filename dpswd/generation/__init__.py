"""Private generators: modules, networks, feature maps, evaluation, and the file that is handed out."""
