"""What is built on collectives: communication hooks, averaging of models, and Join."""
