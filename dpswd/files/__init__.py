"""Files that outlive a run: generators, classifiers, exports, pictures."""
