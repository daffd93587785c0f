"""Forward passes behind one seam: what a model computes is told once, in torch; a back-end runs it."""
