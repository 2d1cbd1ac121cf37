"""How groups are made: which rank this process is, where the ranks meet, which backend serves them, how they leave."""
