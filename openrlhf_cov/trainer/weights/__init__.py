"""New weights for the engines: how they are sent, when, and the check that they arrived."""
