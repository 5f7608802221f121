"""The short help of ``dpswd fit``, which needs no import of Lightning."""

from collections.abc import Sequence

HELP = """\
usage: dpswd fit --config NAME|FILE [options]

train a network from a YAML file, in Lightning

  -c, --config NAME|FILE            a shipped config (dpswd configs), or a file; may be repeated
  --data.path PATH                  private records: a folder of images, a file, or a benchmark
  --data.download true              let a benchmark's data set be downloaded

  --privacy.target_epsilon E        budget; inf adds no noise: NOT PRIVATE, for public stand-ins
  --privacy.target_delta D          budget; choose it well below 1 / N for N records
  --privacy.accountant pld|rdp      how the budget is computed: exactly, or by Renyi bounds
  --privacy.shared_ledger FILE      ledger of several runs on the same records (dpswd ledger create)

  --trainer.default_root_dir DIR    the run directory; that of the config by default
  --trainer.max_steps N             number of training steps; the budget covers all of them
  --trainer.accelerator cpu|gpu|auto
  --trainer.enable_progress_bar false
  --trainer.logger false            no files for TensorBoard in RUN_DIR/lightning_logs
  --seed_everything N               seed of weights and samples; noise and batches have none
  --ckpt_path FILE                  resume from RUN_DIR/checkpoints/last.ckpt

  --print_config                    print the whole config and exit
  --help all                        list every option of trainer, model and data

Every key of the YAML file is an option. Options stand behind --config, and take the place of what
the file says. For example:
dpswd fit --config mnist_swd --trainer.max_steps 200
"""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the options of ``dpswd fit`` include ``--help``."""
    return "--help" in arguments or "-h" in arguments


def asks_for_full_help(arguments: Sequence[str]) -> bool:
    """Whether the options include ``--help all``, which Lightning answers."""
    return asks_for_help(arguments) and "all" in arguments
