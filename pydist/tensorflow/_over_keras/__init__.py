"""The parts of the facade that are made of Keras: importing one of these modules imports Keras over pydist."""
