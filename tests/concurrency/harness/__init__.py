"""What many processes do to the stores while everything fails around them is written down, and checked afterwards.

    python -m tests.concurrency.harness --backend opened --seconds 1800 --seed 7

`workers` do operations at random and note each of them (`history`); `faults` befall them and what they stand on
(`shim`, `disks`, `foreign`); afterwards `transport`, `localqueue` and `localkv` hold the history against the model.
`broken` are variants of qstore that must be found out. A run is rounds, each with a seed and a store of its own:
`--seed` replays what each process chooses and what befalls it, though not how the system lets them meet.
"""
