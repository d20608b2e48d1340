"""A member with the streams protocol (KIP-1071): all is said in heartbeats."""
