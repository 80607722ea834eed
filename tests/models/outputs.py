"""What networks of each prediction type put out, from the residual that they estimate."""


def v_of(r_0, eps, a):
    """v = sqrt(a) eps - sqrt(1 - a) r_0 (Salimans & Ho 2022, section 4)."""
    a = a.view(-1, 1, 1, 1)
    return a.sqrt() * eps - (1 - a).sqrt() * r_0


def network_of(f, prediction_type):
    """A network that estimates r_0 as f does, and puts out what its type says."""

    def network(r_t, y, a, x_init, s):
        r_0, level = f(r_t, y, a, x_init, s), a.view(-1, 1, 1, 1)
        eps = (r_t - level.sqrt() * r_0) / (1 - level).sqrt()
        return {"sample": r_0, "epsilon": eps, "v_prediction": v_of(r_0, eps, a)}[prediction_type]

    network.prediction_type = prediction_type
    return network
