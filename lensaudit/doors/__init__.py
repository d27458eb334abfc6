"""Where other people's tools meet ours: a module a door; nothing of the core imports one."""
