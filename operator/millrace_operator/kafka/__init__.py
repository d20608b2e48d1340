"""The brokers of applications: what they say of an application, and the changes that a decision asks of them."""
