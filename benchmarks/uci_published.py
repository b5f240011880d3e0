"""What papers print for the UCI regression sets, beside `uci_networks.py`."""

#: Test RMSE and negative log density as printed, with their standard errors: Ji and
#: Shen (2019), tables 3 and 4, and the dropout of Gal and Ghahramani (2016) with the
#: settings of 2018 (same splits).
PUBLISHED = {
    "EUBO-VI": {
        "bostonHousing": (2.62, 0.16, 2.37, 0.02),
        "concrete": (4.81, 0.22, 2.83, 0.03),
        "energy": (0.94, 0.08, 1.63, 0.03),
        "kin8nm": (0.08, 0.00, -1.16, 0.01),
        "naval-propulsion-plant": (0.01, 0.01, -3.81, 0.05),
        "power-plant": (4.07, 0.10, 2.82, 0.01),
        "protein-tertiary-structure": (4.41, 0.05, 2.87, 0.02),
        "wine-quality-red": (0.60, 0.03, 0.92, 0.03),
        "yacht": (0.75, 0.05, 1.12, 0.02),
    },
    "Renyi-VI": {
        "bostonHousing": (2.86, 0.40, 2.46, 0.16),
        "concrete": (5.15, 0.25, 3.04, 0.07),
        "energy": (1.00, 0.18, 1.67, 0.05),
        "kin8nm": (0.08, 0.00, -1.14, 0.02),
        "naval-propulsion-plant": (0.00, 0.01, -4.11, 0.11),
        "power-plant": (4.13, 0.04, 2.84, 0.04),
        "protein-tertiary-structure": (4.65, 0.07, 2.93, 0.00),
        "wine-quality-red": (0.62, 0.03, 0.94, 0.04),
        "yacht": (0.94, 0.23, 1.61, 0.00),
    },
    "ELBO-VI": {
        "bostonHousing": (2.89, 0.17, 2.52, 0.03),
        "concrete": (5.42, 0.11, 3.11, 0.02),
        "energy": (0.51, 0.01, 0.77, 0.02),
        "kin8nm": (0.08, 0.00, -1.12, 0.01),
        "naval-propulsion-plant": (0.00, 0.00, -6.49, 0.04),
        "power-plant": (4.07, 0.04, 2.82, 0.01),
        "protein-tertiary-structure": (4.45, 0.02, 2.91, 0.00),
        "wine-quality-red": (0.63, 0.01, 0.96, 0.01),
        "yacht": (0.81, 0.05, 1.77, 0.01),
    },
    "MC dropout, 2018": {
        "bostonHousing": (2.90, 0.18, 2.40, 0.04),
        "concrete": (4.82, 0.16, 2.93, 0.02),
        "energy": (0.54, 0.06, 1.21, 0.01),
        "kin8nm": (0.08, 0.00, -1.14, 0.01),
        "naval-propulsion-plant": (0.00, 0.00, -4.45, 0.00),
        "power-plant": (4.01, 0.04, 2.80, 0.01),
        "protein-tertiary-structure": (4.27, 0.02, 2.87, 0.00),
        "wine-quality-red": (0.62, 0.01, 0.93, 0.01),
        "yacht": (0.67, 0.05, 1.25, 0.01),
    },
}

#: Havasi et al. (2021), table 1: log density of the mean-field start, and refined; ELBO
#: of both; log density of the ensemble and of multiplicative flows.
REFINED = {
    "bostonHousing": (-2.874, -2.851, -668.2, -630.3, -9.136, -2.920),
    "concrete": (-3.138, -3.131, -3248.1, -3071.1, -4.062, -3.202),
    "energy": (-0.749, -0.707, -1296.7, -1192.3, -0.666, -0.756),
    "kin8nm": (1.066, 1.069, 6071.2, 6172.7, 1.135, 1.125),
    "naval-propulsion-plant": (5.969, 6.128, 53440.7, 54882.6, 3.995, 3.473),
    "power-plant": (-2.826, -2.820, -22496.5, -22368.9, -3.935, -2.835),
    "protein-tertiary-structure": (
        -2.926,
        -2.923,
        -108806.0,
        -108597.5,
        -3.687,
        -2.928,
    ),
    "wine-quality-red": (-0.973, -0.968, -1346.1, -1311.8, -0.968, -0.963),
    "yacht": (-1.749, -1.626, -928.7, -790.0, -0.984, -1.339),
}

#: Havasi et al. (2021), tables 2 and 3: log density of the mean-field start, refined
#: and of the ensemble; accuracies of the same, in percent; ELBO of start and refined.
IMAGES = {
    "LeNet-5, MNIST": (
        *(-0.032, -0.025, -0.017),
        *(99.1, 99.2, 99.4),
        *(-7618.5, -6310.8),
    ),
    "LeNet-5, Fashion-MNIST": (
        *(-0.255, -0.241, -0.201),
        *(90.7, 91.3, 93.1),
        *(-22830.3, -20438.9),
    ),
    "LeNet-5, CIFAR-10": (
        *(-0.815, -0.768, -0.791),
        *(72.3, 73.5, 76.3),
        *(-57257.8, -50989.2),
    ),
    "ResNet with batch normalization, CIFAR-10": (
        *(-0.672, -0.593, -0.561),
        *(77.6, 79.7, 83.6),
    ),
    "hybrid ResNet with batch normalization, CIFAR-10": (
        *(-0.465, -0.423, -0.561),
        *(84.0, 85.6, 83.6),
    ),
}
