"""Which replicas should run where, decided by pure functions: nothing here imports Ray."""
