"""How what the package ships was made; nothing in the package imports it."""
