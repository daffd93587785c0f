"""The directory of generations: what is published, active and kept, with the updates written since."""
