"""Live labelling: a ``Learner`` that every label changes at once.

learner.py has its methods, session.py what it holds. pool.py reads the items, book.py keeps the labels, model.py the
linearised network that follows them. choose.py says which item next, training.py trains the network anew, progress.py
says when to and when to stop, explain.py what a label would change, saving.py writes it all to a folder.
"""

from foretaste.label.learner import Learner as Learner
