// Charts of a study.

drawAll();
