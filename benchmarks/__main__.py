"""Every benchmark that needs no data, one after the other: `python -m benchmarks`, or `make bench`."""

from benchmarks import engine, labels, losses, metrics

labels.main()
metrics.main()
losses.main()
engine.main()
