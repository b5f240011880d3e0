"""Wrong variants of targets, objectives, solvers, sampling, evidence and scores."""

from tests.mutants.places import Variant

# A few lines for each, by folder.
# fmt: off
VARIANTS = [
    # objectives
    Variant("doubly-reparam-not-detached", where="WeightsObjective.surrogate",
        find="posterior.log_q(draw, posterior.params.detach())",
        put="posterior.log_q(draw)",
        test="tests/objectives/test_objectives.py::"
             "test_package_trains_with_these_rules[doubly_reparam-MeanFieldNormal()]"),
    Variant("score-draws-not-detached", where="WeightsObjective.surrogate",
        find="draw.detach()", put="draw",
        test="tests/objectives/test_objectives.py::"
             "test_package_trains_with_these_rules[score-FullRankNormal()]"),
    Variant("stl-not-detached", where="ELBO.surrogate",
        find="posterior.log_q(draw, posterior.params.detach())",
        put="posterior.log_q(draw)",
        test="tests/objectives/test_objectives.py::test_sticking_the_landing"),
    Variant("elbo-prior-twice", where="ELBO.surrogate",
        find="(log_prior - target.log_joint(theta, rows)).mean()",
        put="-target.log_joint(theta, rows).mean()",
        test="tests/objectives/test_alpha_energy.py::test_one_draw_is_the_elbo"),
    Variant("power-path-weights-sum-over-draws", where="_PowerBound.path_weights",
        find="weights.square()", put="weights",
        test="tests/objectives/test_importance_weighted.py::"
             "test_many_draws_give_the_exact_value_and_gradient[RenyiBound(alpha=1.2,"
             " gradient='doubly_reparam')]"),
    Variant("iwelbo-groups-joined", where="IWELBO.group_shape",
        find="(max(1, n_draws // self.n_importance), self.n_importance)",
        put="(1, max(1, n_draws // self.n_importance) * self.n_importance)",
        test="tests/objectives/test_importance_weighted.py::test_order_near_1[1]"),
    Variant("upper-bound-minimized-in-hyper", where="WeightsObjective.surrogate",
        find="surrogate - weighted_sum(weights, for_hyper.reshape(shape))",
        put="surrogate + weighted_sum(weights, for_hyper.reshape(shape))",
        test="tests/objectives/test_importance_weighted.py::"
             "test_maximized_bounds_have_their_own_gradient_in_hyper[objective1]"),
    Variant("control-variate-not-left-out", where="_leave_one_out",
        find="(product.sum(0) - product, square.sum(0) - square)",
        put="(product.sum(0) + 0 * product, square.sum(0) + 0 * square)",
        test="tests/objectives/test_score_gradient.py::test_few_draws[1]"),
    Variant("alpha-energy-without-inverse-n", where="AlphaEnergy._from_draws",
        find="(log_prior - log_q) / target.total_weight", put="log_prior - log_q",
        test="tests/objectives/test_alpha_energy.py::test_one_draw_is_the_elbo"),
    Variant("analytic-entropy-forgotten", where="_Moments.complete",
        find="torch.addcmul(minus_weight, slope, std, out=slope)",
        put="slope.mul_(std)",
        test="tests/objectives/test_analytic_steps.py::"
             "test_single_precision[categorical]"),
    Variant("members-batch-not-scaled", where="MemberBatches._fill",
        find="target.n_rows", put="counts",
        test="tests/objectives/test_analytic_steps.py::"
             "test_single_precision[categorical]"),
    # sampling
    Variant("momentum-energy-left-out", where="State.move",
        find="start + 0.5 * momentum.square().sum(1)", put="start",
        test="tests/sampling/test_annealing.py::test_moves_leave_their_density[0.0]"),
    Variant("annealed-energy-exchanged", where="State._energy", find="1 - self.beta",
        put="self.beta",
        test="tests/sampling/test_annealing.py::test_moves_leave_their_density[0.0]"),
    Variant("pareto-cutoff-not-subtracted", where="pareto_khat",
        find="top[1:] - top[0]", put="top[1:]",
        test="tests/sampling/test_diagnostics.py::test_khat_is_its_definition[40-0.7]"),
    Variant("rhat-without-root", where="_largest_ratio",
        find="np.sqrt(np.where(within + between > 0, ratio, 1.0))",
        put="np.where(within + between > 0, ratio, 1.0)",
        test="tests/sampling/test_diagnostics.py::"
             "test_rhat_is_that_of_arviz[drifting]"),
    Variant("ess-of-chains", where="effective_sample_size",
        find="n_chains * total / between.clamp(min=1e-300)",
        put="n_chains * total.sqrt() / between.sqrt().clamp(min=1e-300)",
        test="tests/sampling/test_diagnostics.py::"
             "test_ess_of_autoregressive_chains[0.9]"),
    Variant("student-t-determinant", where="StudentT.log_prob",
        find="constant - self.normal.half_log_det", put="constant",
        test="tests/sampling/test_mixture.py::test_the_mixtures_weights_are_found"),
    Variant("annealing-weight-after-move", where="AnnealedPath._along",
        find="t if sign > 0 else t - 1", put="t - 1 if sign > 0 else t",
        test="tests/sampling/test_annealing.py::test_weights_are_unbiased[4-diag]"),
    Variant("exchange-sign", where="ReplicaExchange._exchange",
        find="weights[lower] - weights[lower + 1]",
        put="weights[lower + 1] - weights[lower]",
        test="tests/sampling/test_tempering.py::"
             "test_chains_exchange_places_between_modes"),
    Variant("particles-mean-of-logs", where="particle_estimates",
        find="log_mean_exp(increments)", put="increments.mean(1)",
        test="tests/sampling/test_tempering.py::test_particles_are_unbiased[1]"),
    Variant("jump-without-proposal", where="State.jump",
        find="value - proposal.log_prob(offered)", put="value",
        test="tests/sampling/test_mixture.py::"
             "test_jumps_bring_the_modes_into_proportion"),
    # solvers
    Variant("conjugate-gamma-entropy", where="Node.__init__",
        find="a * float(digamma(a))", put="float(digamma(a))",
        test="tests/solvers/test_conjugate.py::"
             "test_coordinate_ascent[coef only-MeanFieldNormal()]"),
    Variant("conjugate-trace-forgotten", where="Conjugate.evaluate",
        find="data.residual + float(self.values @ (shift * shift)) + q.trace",
        put="data.residual + float(self.values @ (shift * shift))",
        test="tests/solvers/test_conjugate.py::"
             "test_coordinate_ascent[coef only-MeanFieldNormal()]"),
    Variant("conjugate-count-not-halved", where="Conjugate.__init__",
        find="0.5 * data.n", put="data.n",
        test="tests/solvers/test_conjugate.py::"
             "test_coordinate_ascent[noise only-FullRankNormal()]"),
    Variant("gamma-step-count", where="GammaSteps._coef", find="0.5 * count",
        put="count",
        test="tests/solvers/test_conjugate.py::"
             "test_alternating_finds_the_same[coef only-FullRankNormal()]"),
    Variant("tilted-weights-exchanged", where="_Sample.__init__",
        find="self.delta * log_p", put="alpha * log_p",
        test="tests/solvers/test_renyi_solution.py::"
             "test_one_coefficient_against_a_grid[full_rank-0.1]"),
    Variant("moments-not-centered", where="_moments", find="centered.square",
        put="theta.square",
        test="tests/evidence/test_real_data.py::"
             "test_eubo_has_the_moments_of_the_posterior[setosa-mean_field]"),
    Variant("moments-error-of-equal-draws", where="_standard_error",
        find="float((weights * centered).norm())",
        put="float(centered.norm()) / len(centered)",
        test="tests/solvers/test_errors_of_values.py::test_weighted_draws"),
    Variant("adam-bias-correction", where="_update.update", find="made.add_(one)",
        put="made.fill_(1000000000.0)",
        test="tests/solvers/test_members.py::test_the_fused_adam_is_adam[dtype0]"),
    Variant("quasi-newton-log-scale", where="quasi_newton_run.objective",
        find="g_factor.diagonal() * log_d.exp()", put="g_factor.diagonal()",
        test="tests/solvers/test_quasi_newton_run.py::"
             "test_gradients_and_optimum[full]"),
    Variant("natural-step-gradient-without-prior", where="NormalPoint.mean_gradient",
        find="target.predictor.pull_back(target.X, self.slope) + self.terms.gradient",
        put="target.predictor.pull_back(target.X, self.slope)",
        test="tests/solvers/test_states.py::"
             "test_natural_gradients_leave_tensors_for_graphs[loss0]"),
    Variant("worse-of-two-starts", where="choose_start", find="min", put="max",
        test="tests/solvers/test_wide_start.py::"
             "test_a_spike_does_not_hold_a_regression[mean_field-"
             "StudentT(scale=0.003)]"),
    Variant("best-not-returned", where="Training.end",
        find="best.end if best.is_missed(torch.cat(end.values)) else end", put="end",
        test="tests/solvers/test_best.py::"
             "test_a_single_huge_value_is_no_reason_to_go_back"),
    Variant("warm-up-forever", where="Schedule.share",
        find="self.n_seen < self.warm_up", put="self.warm_up",
        test="tests/solvers/test_members.py::test_warm_ups_end"),
    # evidence
    Variant("scored-density-without-jacobian", where="_Scored.log_prob",
        find="self.density.log_prob(x) + log_slope",
        put="self.density.log_prob(x) - log_slope",
        test="tests/evidence/test_scored_mode.py::"
             "test_the_density_of_the_logarithm_integrates_to_one[150.0]"),
    Variant("every-independent-draw-accepted", where="IndependenceChains.run",
        find="self.value - log_prob", put="offered.log_weights",
        test="tests/evidence/test_budget.py::"
             "test_independence_chains_draw_from_the_posterior"),
    Variant("few-chains-like-many", where="reverse_bound",
        find="1 < n_chains < N_GROUPS", put="False",
        test="tests/evidence/test_budget.py::test_errors_of_few_chains_are_larger"),
    Variant("reverse-bound-sign", where="reverse_bound",
        find="-log_mean_exp(-blocks, 1).mean(1)", put="log_mean_exp(blocks, 1).mean(1)",
        test="tests/evidence/test_evidence.py::test_estimates_of_known_weights[1.5]"),
    Variant("finite-sample-penalty-below", where="finite_sample_bounds",
        find="float(lower) - penalty / n_blocks",
        put="float(lower) + penalty / n_blocks",
        test="tests/evidence/test_evidence.py::test_conjugate_regression[shape0-0]"),
    Variant("finite-sample-penalty-above", where="finite_sample_bounds",
        find="float(upper) + penalty / len(reverse)",
        put="float(upper) - penalty / len(reverse)",
        test="tests/evidence/test_evidence.py::test_conjugate_regression[shape0-0]"),
    Variant("bridge-error-one-side", where="bridge_estimate",
        find="b.var() / b.mean() ** 2 / n_effective", put="0.0",
        test="tests/evidence/test_evidence.py::test_bridge_of_two_normals[2.0]"),
    Variant("jackknife-factor", where="jackknife",
        find="math.sqrt(n_blocks - 1) * float(values.std(correction=0))",
        put="float(values.std(correction=0))",
        test="tests/solvers/test_renyi_solution.py::test_jackknife_error_of_a_mean"),
    Variant("elbo-error-of-a-draw", where="lower_bound",
        find="float(log_weights.std()) / n_draws ** 0.5",
        put="float(log_weights.std())",
        test="tests/evidence/test_fit_checks.py::"
             "test_error_of_a_drawn_elbo_is_that_of_the_mean"),
    Variant("interval-lower-end", where="EvidenceBounds.interval",
        find="self.lower - n_se * self.lower_se",
        put="self.lower + n_se * self.lower_se",
        test="tests/evidence/test_limits.py::"
             "test_limits_are_quantiles_of_a_student_t[0.999]"),
    # metrics
    Variant("crps-of-a-normal", where="normal_crps", find="math.pi", put="2 * math.pi",
        test="tests/metrics/test_metrics.py::test_crps_of_draws_has_no_bias[2]"),
    Variant("sample-crps-unfair", where="sample_crps", find="size - 1", put="size",
        test="tests/metrics/test_metrics.py::test_crps_of_draws_is_its_definition"),
    Variant("weighted-score-unweighted", where="_mean",
        find="np.average(rows[used], weights=weight[used])",
        put="np.average(rows[used])",
        test="tests/metrics/test_metrics.py::test_weights_equal_repetition[scorer0]"),
]
