"""How true the figures are: predictions against published measured runs."""
