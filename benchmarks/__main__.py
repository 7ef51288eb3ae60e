"""Every benchmark that needs no data, one after the other: `python -m benchmarks`, or `make bench`."""

from benchmarks import contrast, engine, label_state, labels, losses, metrics, selection_cost

labels.main()
label_state.main()
metrics.main()
losses.main()
contrast.main()
selection_cost.main()
engine.main()
