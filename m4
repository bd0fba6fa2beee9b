bpf: take Followed of the model

The model's snapshot has the same two fields, and the daemon copied one to
the other.
