"""The short help of ``dpswd fit``, which needs no import of Lightning."""

from collections.abc import Sequence

HELP = """\
usage: dpswd fit --config NAME|FILE [options]

  -c, --config NAME|FILE            a shipped config (dpswd configs), or a file; may be repeated
  --data.path PATH                  records: a folder of images, a file of vectors, or a benchmark
  --data.download true              let a benchmark's data set be downloaded

  --privacy.target_epsilon E        budget of the run; inf: no noise, NOT PRIVATE, for stand-ins
  --privacy.target_delta D          budget of the run; below 1 / N
  --privacy.accountant pld|rdp      exact composition, or Renyi differential privacy
  --privacy.shared_ledger FILE      ledger of several runs on the same records (dpswd ledger create)

  --trainer.default_root_dir DIR    the run directory; that of the config by default
  --trainer.max_steps N             training steps, which the budget is planned over
  --trainer.accelerator cpu|gpu|auto
  --trainer.enable_progress_bar false
  --trainer.logger false            no files for TensorBoard in RUN_DIR/lightning_logs
  --seed_everything N               weights and public samples; never noise, batches or directions
  --ckpt_path FILE                  resume from RUN_DIR/checkpoints/last.ckpt

  --print_config                    print the whole config and exit
  --help all                        list every option of trainer, model and data

A key of the config is an option: --model.init_args.n_projections 200. Keys of the command line win.
"""


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the options of ``dpswd fit`` include ``--help``."""
    return "--help" in arguments or "-h" in arguments


def asks_for_full_help(arguments: Sequence[str]) -> bool:
    """Whether the options include ``--help all``, which Lightning answers."""
    return asks_for_help(arguments) and "all" in arguments
