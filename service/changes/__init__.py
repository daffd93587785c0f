"""Changes to what is served: updates of single candidates, rebuild jobs, compactions."""
