"""How groups are made: who this rank is, where ranks meet, what serves them, and how they leave."""
