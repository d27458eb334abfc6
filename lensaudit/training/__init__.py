"""How are models made that an audit is tested on: unlearning losses, one loop, one family."""
