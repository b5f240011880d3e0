"""The tables of the page "What the sources claim", from stored results and quadrature.

    PYTHONPATH=. python benchmarks/claims.py          # writes doc/claims/*.csv; seconds
    PYTHONPATH=. python benchmarks/claims.py --run    # figures 2, 3 of Havasi et al.

No number of these tables is typed: printed ones are in `uci_published.py`, those of
skvi in ``benchmarks/results``, and what is wrong in the sources is computed here, each
beside what is right. The lists ``doc/claims/items_*.csv`` are written by hand, and
counted here.
"""

import argparse
import csv
import math
import time
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import torch
from claims_errors import checks, upper_bounds
from runs import read, sweep
from scipy.stats import differential_entropy
from uci_networks import RESULTS, SETS
from uci_published import IMAGES, PUBLISHED, REFINED

from skvi.base import Layout, NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.inference import VariationalInference
from skvi.posteriors import RefinedNormal
from skvi.priors import Normal

PAGES = Path(__file__).parents[1] / "doc" / "claims"
SOURCES = {
    "000": "Ji and Shen",
    "001": "Knoblauch et al.",
    "002": "Molchanov",
    "003": "Havasi et al.",
    "004": "lecture notes",
}
STATES = ("there", "refused", "in part", "missing")
NAMES = dict(zip(SETS, [name.split("-")[0] for name in SETS], strict=True))
NAMES["bostonHousing"] = "Boston"
SCHOOLS = {
    "y": [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
    "error": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
}


def shown(values, digits=2, sign=""):
    """Mean, standard error and number of splits."""
    if not values:
        return "–"
    error = np.std(values, ddof=1) / len(values) ** 0.5 if values[1:] else math.nan
    text = f"{np.mean(values):{sign}.{digits}f}"
    text += f" ± {error:.{digits}f}" if values[1:] else ""
    return f"{text} ({len(values)})"


def scores(column, first=0, last=20, name="uci_networks.csv"):
    """Values of a column by set and setting, then split."""
    found = {}
    for row in read(RESULTS / name):
        if first <= int(row["split"]) < last:
            key = row["set"], row["setting"]
            found.setdefault(key, {})[row["split"]] = float(row[column])
    return found


def pairs(found, name, new, old="elbo, large steps"):
    """Differences of two settings on the same splits."""
    a, b = found.get((name, new), {}), found.get((name, old), {})
    return [a[k] - b[k] for k in a if k in b]


def networks(column, at):
    """Tables 3 and 4 of Ji and Shen, printed and run."""
    found = scores(column)
    settings = {
        "EUBO": "eubo",
        "Rényi, 0.5": "renyi 0.5",
        "chi, 2": "chi 2",
        "ELBO": "elbo, large steps",
        "ELBO, small steps": "elbo",
    }
    rows = []
    for name in SETS:
        row = {"set": NAMES[name]}
        for title, setting in settings.items():
            printed = PUBLISHED.get(f"{title.split(',')[0].replace('é', 'e')}-VI", {})
            if name in printed and title != "ELBO, small steps":
                mean, error = printed[name][at : at + 2]
                row[f"{title}, printed"] = f"{mean:.2f} ± {error:.2f}"
            values = list(found[name, setting].values())
            row[title] = shown(values, 2 if abs(np.mean(values)) > 0.1 else 4)
        row["EUBO minus ELBO"] = shown(pairs(found, name, "eubo"), 3, "+")
        rows.append(row)
    return rows


def figure_14():
    """Differences from VI, which the slides show as a figure: below 0 is better."""
    settings = {
        "GVI, Rényi 0.5": ("gvi renyi 0.5", "elbo, large steps"),
        "GVI, Rényi 1.5": ("gvi renyi 1.5", "elbo, large steps"),
        "DVI, Rényi 0.5": ("renyi 0.5", "elbo, large steps"),
        "DVI, alpha energy 0.5": ("alpha energy 0.5", "elbo"),
    }
    rows = []
    for column, first in product(("nll", "rmse"), (0, 20)):
        found = scores(column, first, first + 20 if first == 0 else 50)
        for name in SETS:
            gains = {k: pairs(found, name, *pair) for k, pair in settings.items()}
            if any(gains.values()):
                splits = "later splits, " if first else ""
                row = {"": f"{NAMES[name]}, {splits}{column.upper()}"}
                rows.append(row | {k: shown(v, 3, "+") for k, v in gains.items()})
    return rows


def figure_16():
    """Two layers under the gamma loss minus log loss: below 0 is better."""
    table, rows = read(RESULTS / "deep_processes.csv"), []
    losses = sorted({row["loss"] for row in table} - {"log"})
    for name, column in product(
        dict.fromkeys(r["set"] for r in table), ("nll", "rmse")
    ):
        found = {
            (row["loss"], row["split"]): float(row[column])
            for row in table
            if row["set"] == name
        }
        splits = [split for loss, split in found if loss == "log"]
        row = {"set": f"{name}, {column.upper()}"}
        row["log loss"] = shown([found["log", k] for k in splits], 3)
        for loss in losses:
            title = loss.replace("GammaLoss(gamma=", "γ = ").rstrip(")")
            both = [k for k in splits if (loss, k) in found]
            gains = [found[loss, k] - found["log", k] for k in both]
            row[title] = shown(gains, 3, "+")
        rows.append(row)
    return rows


def again():
    """Negative log density by the later program minus that of the first."""
    first, later = scores("nll"), scores("nll", name="uci_networks_again.csv")
    return [
        {
            "set": NAMES[name],
            "setting": setting.replace("elbo, large steps", "ELBO"),
            "later minus first": shown(
                [later[name, setting][k] - first[name, setting][k] for k in found],
                3,
                "+",
            ),
        }
        for (name, setting), found in later.items()
    ]


def refined():
    """Table 1 of Havasi et al.: the gains over the start, printed and run."""
    table, rows = read(RESULTS / "uci_refined.csv"), []
    for name in SETS:

        def gains(family, new, old, name=name):
            own = [r for r in table if r["set"] == name and r["family"] == family]
            return [float(r[new]) - float(r[old]) for r in own]

        start, end, elbo, elbo_aux, ensemble, flow = REFINED[name]
        rows.append(
            {
                "set": NAMES[name],
                "refined, printed": f"{end - start:+.3f}",
                "refined": shown(gains("refined", "of_50_refined", "of_100"), 3, "+"),
                "ELBO, printed": f"{elbo_aux - elbo:+.0f}",
                "ELBO": shown(gains("refined", "elbo", "elbo_of_start"), 0, "+"),
                "ensemble, printed": f"{ensemble - start:+.3f}",
                "mixture of eight": shown(gains("ensemble", "of_100", "start"), 3, "+"),
                "MNF, printed": f"{flow - start:+.3f}",
                "MNF": shown(gains("multiplicative_flow", "of_100", "start"), 3, "+"),
            }
        )
    return rows


def refined_costs():
    """What few refined samples gain, and what they cost."""
    table, rows = read(RESULTS / "uci_refined.csv"), []
    for name in SETS:
        own = [r for r in table if r["set"] == name]
        fits = [r for r in own if r["family"] == "refined"]
        few = [float(r["of_10_refined"]) - float(r["of_10"]) for r in fits]
        ten = [float(r["of_10_refined"]) - float(r["of_100"]) for r in fits]
        row = {
            "set": NAMES[name],
            "start": shown([float(r["of_100"]) for r in fits], 3),
            "10 samples, minus 10 draws": shown(few, 4, "+"),
            "10 samples, minus 100 draws": shown(ten, 4, "+"),
        }
        for family, title in (("refined", "start"), ("ensemble", "mixture")):
            seconds = [float(r["seconds"]) for r in own if r["family"] == family]
            row[f"seconds, {title}"] = f"{np.mean(seconds):.1f}"
        seconds = [float(r["seconds_of_10"]) for r in fits]
        row["seconds, 10 samples"] = f"{np.mean(seconds):.1f}"
        flows = [r for r in own if r["family"] == "multiplicative_flow"]
        row["seconds, MNF"] = f"{np.mean([float(r['seconds']) for r in flows]):.1f}"
        gains = [float(r["elbo"]) - float(r["elbo_of_start"]) for r in flows]
        row["ELBO, MNF"] = shown(gains, 0, "+")
        rows.append(row)
    return rows


def dropout():
    """Dropout by zeros beside mean-field normals."""
    table, rows = read(RESULTS / "dropout_by_zeros.csv"), []
    for name, family in dict.fromkeys((row["set"], row["family"]) for row in table):
        own = [row for row in table if (row["set"], row["family"]) == (name, family)]
        rates = [list(map(float, row["rates"].split())) for row in own]
        seconds = np.mean([float(row["seconds"]) for row in own])
        rows.append(
            {
                "set": name,
                "family": family,
                "log density": shown([float(row["density"]) for row in own], 3),
                "ELBO": shown([float(row["elbo"]) for row in own], 0),
                "rates": ", ".join(f"{rate:.2f}" for rate in np.mean(rates, 0)),
                "seconds": f"{seconds:.1f}",
            }
        )
    return rows


def images():
    """Tables 2 and 3 of Havasi et al., printed, and networks for digits."""
    table, rows = read(RESULTS / "digits_refined.csv"), []
    titles = "log density, start", "refined, gain", "ensemble, gain"
    titles += "accuracy, start", "refined", "ensemble", "ELBO, refined, gain"
    for name, (start, end, other, *more) in IMAGES.items():
        found = f"{start:.3f}", f"{end - start:+.3f}", f"{other - start:+.3f}"
        found += tuple(f"{value:.1f} %" for value in more[:3])
        found += (f"{more[4] - more[3]:+.0f}" if more[3:] else "–",)
        rows.append(
            {"network": f"{name}, printed"} | dict(zip(titles, found, strict=True))
        )
    for name in dict.fromkeys(row["network"] for row in table):
        own = [row for row in table if row["network"] == name]
        # A hybrid network without posterior is the residual one.
        same = name.removesuffix(", hybrid")
        other = {row["split"]: row for row in table if row["network"] == same}

        def of(measure, title, own=own, other=other):
            key = f"{measure}_{title}"
            found = [other[row["split"]] for row in own] if title == "ensemble" else own
            return np.array([float(row[key]) for row in found])

        start = of("log_prob", "start")
        found = [shown(list(start), 3)]
        for title in ("refined", "ensemble"):
            found.append(shown(list(of("log_prob", title) - start), 3, "+"))
        for title in ("start", "refined", "ensemble"):
            found.append(f"{100 * of('accuracy', title).mean():.1f} %")
        found.append(shown(list(of("elbo", "refined") - of("elbo", "start")), 0, "+"))
        rows.append(
            {"network": f"{name}, digits"} | dict(zip(titles, found, strict=True))
        )
    return rows


def mushrooms():
    """Figure 5 of Havasi et al.: the regret after 400 rounds."""
    table = read(RESULTS / "mushroom.csv")
    ends = {}
    for row in table:
        ends.setdefault(row["policy"], {})[row["seed"]] = float(row["400"])
    start = ends["mean field, Thompson"]
    return [
        {
            "policy": policy,
            "regret": shown(list(found.values()), 0),
            "minus mean field, Thompson": shown(
                [
                    found[k] - start[k]
                    for k in found
                    if policy != "mean field, Thompson"
                ],
                0,
                "+",
            ),
        }
        for policy, found in ends.items()
    ]


def figure_6():
    """D(q || pi) of two normals, for the orders of a divergence."""
    layout = Layout({"theta": (1,)})
    prior = Normal().build(layout)
    rows = []
    for title, mean, std in (
        ("narrow", 1.0, 0.3),
        ("as wide", 1.0, 1.0),
        ("off", 3, 1),
    ):
        q = NormalForm(*torch.tensor([[mean], [std]], dtype=torch.float64))
        row = {"q": f"N({mean:g}, {std:g}²), {title}"}
        for divergence in (
            KLDivergence(),
            KLDivergence(weight=0.5),
            RenyiDivergence(0.5),
            RenyiDivergence(0.9),
            RenyiDivergence(1.5),
            AlphaDivergence(0.5),
            BetaDivergence(1.5),
            GammaDivergence(1.5),
        ):
            row[repr(divergence)] = f"{float(divergence.closed_form(q, prior)):.3f}"
        rows.append(row)
    return rows


def counts():
    """Items of each source by state."""
    rows, total = [], Counter()
    for key, author in SOURCES.items():
        found = Counter(row["state"] for row in read(PAGES / f"items_{key}.csv"))
        total += found
        rows.append({"source": author, "items": found.total()} | dict(found))
    rows.append({"source": "all", "items": total.total()} | dict(total))
    return [{k: row.get(k, 0) for k in ("source", "items", *STATES)} for row in rows]


def four_modes(parameters):
    """A likelihood of four peaks for one weight with a N(0, 1) prior."""
    peaks = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
    near = -0.5 * ((parameters["w"][..., None] - peaks) / 0.2) ** 2
    return torch.logsumexp(near, -1)


def eight_schools(parameters):
    """Log joint density of the eight schools, also in standardized effects."""
    mu, tau = parameters["mu"], parameters["tau"]
    y, error = (torch.tensor(SCHOOLS[k], dtype=torch.float64) for k in SCHOOLS)
    normal = torch.distributions.Normal
    found = normal(0.0, 5.0).log_prob(mu)
    found = found + torch.distributions.HalfCauchy(5.0).log_prob(tau)
    if "effects" in parameters:
        theta = mu[:, None] + tau[:, None] * parameters["effects"]
        found = found + normal(0.0, 1.0).log_prob(parameters["effects"]).sum(1)
    else:
        theta = parameters["theta"]
        found = found + normal(mu[:, None], tau[:, None]).log_prob(theta).sum(1)
    return found + normal(theta, error).log_prob(y).sum(1)


def evidence_of_modes():
    """Log evidence by quadrature."""
    w = torch.linspace(-6, 6, 10_001, dtype=torch.float64)
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(w)
    return float(torch.logsumexp(four_modes({"w": w}) + prior, 0) + (w[1] - w[0]).log())


def evidence_of_schools():
    """Log evidence by quadrature over log tau; the rest is normal."""
    x = torch.linspace(-12, 12, 10_001, dtype=torch.float64)
    y, error = (torch.tensor(SCHOOLS[k], dtype=torch.float64) for k in SCHOOLS)
    variance = x.mul(2).exp()[:, None] + error.square()
    cov = torch.diag_embed(variance) + 25.0
    of_y = torch.distributions.MultivariateNormal(torch.zeros_like(y), cov)
    prior = torch.distributions.HalfCauchy(5.0).log_prob(x.exp()) + x
    return float(torch.logsumexp(of_y.log_prob(y) + prior, 0) + (x[1] - x[0]).log())


POSITIVE = {"tau": "positive"}
PROBLEMS = {
    "four modes": (four_modes, {"w": ()}, {}, Normal(), evidence_of_modes),
    "eight schools": (
        *(eight_schools, {"mu": (), "tau": (), "theta": (8,)}, POSITIVE),
        *(None, evidence_of_schools),
    ),
    "eight schools, standardized": (
        *(eight_schools, {"mu": (), "tau": (), "effects": (8,)}, POSITIVE),
        *(None, evidence_of_schools),
    ),
}


def one_run(problem, n_auxiliary):
    """ELBO of refined samples, or of the normal that they start from."""
    density, shapes, supports, prior, evidence = PROBLEMS[problem]
    family = "mean_field"
    ratio = {0: 0.0, 12: 0.3}.get(n_auxiliary, 0.8 if problem == "four modes" else 0.7)
    if n_auxiliary:
        family = RefinedNormal(n_auxiliary=n_auxiliary, n_draws=1000, ratio=ratio)
    start = time.process_time()
    model = VariationalInference(
        density, shapes, supports, prior=prior, posterior=family, random_state=0
    ).fit()
    seconds, of_samples = time.process_time() - start, ""
    if problem == "four modes":  # the entropy from spacings
        w = torch.from_numpy(model.sample_posterior(1000, random_state=0)["w"])
        log_joint = density({"w": w}) + torch.distributions.Normal(0.0, 1.0).log_prob(w)
        of_samples = f"{float(log_joint.mean()) + differential_entropy(w):.3f}"
    return {
        "problem": problem,
        "auxiliaries": n_auxiliary,
        "ratio": ratio,
        "elbo": f"{model.lower_bound_:.3f}",
        "error": f"{model.lower_bound_se_:.3f}",
        "elbo of samples": of_samples,
        "evidence": f"{evidence():.3f}",
        "seconds": f"{seconds:.1f}",
    }


def write(name, rows):
    """One table of the page."""
    with (PAGES / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def tables():
    """All tables by name."""
    return {
        "errors": checks(),
        "upper_bounds": upper_bounds(),
        "rmse": networks("rmse", 0),
        "nll": networks("nll", 2),
        "figure_6": figure_6(),
        "figure_14": figure_14(),
        "figure_16": figure_16(),
        "again": again(),
        "refined": refined(),
        "refined_costs": refined_costs(),
        "refined_densities": read(RESULTS / "claims_refined.csv"),
        "dropout": dropout(),
        "images": images(),
        "mushrooms": mushrooms(),
        "counts": counts(),
    }


def main():
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true")
    if parser.parse_args().run:
        runs = [(problem, n) for problem in PROBLEMS for n in (0, 2, 5, 10, 12)]
        keys, path = ("problem", "auxiliaries"), RESULTS / "claims_refined.csv"
        for row in sweep(path, keys, runs, one_run, "Refined samples of densities"):
            print(*row.values(), flush=True)
    for name, rows in tables().items():
        if rows:
            write(name, rows)


if __name__ == "__main__":
    main()
