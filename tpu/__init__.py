"""Cloud TPUs: what a run costs on a slice, and launching one."""
