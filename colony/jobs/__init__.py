"""Jobs: cells whose handles run in processes of their own, handed over a queue of RQ."""
