"""Cloud TPUs: estimates what a run costs on a slice, and launches runs."""
