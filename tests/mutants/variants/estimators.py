"""Wrong variants of estimators, searches, changepoints, displays and checks."""

from tests.mutants.places import Variant

# A few lines for each, by folder.
# fmt: off
VARIANTS = [
    Variant("mixture-of-modes-unused", where="begin_near",
        find="modes_of(starts, normal)", put="[normal]",
        test="tests/inference/test_families.py::"
             "test_a_mixture_has_the_modes_that_starts_find"),
    Variant("solver-settings-of-the-network-ignored",
        where="solver_for",
        find="Stochastic() if is_named else clone(network.solver)",
        put="Stochastic()",
        test="tests/solvers/test_solver_objects.py::"
             "test_settings_of_networks_are_those_of_their_solver"),
    Variant("averages-of-the-first-node", where="CoefficientsMixin._average",
        find="mean, variance.sqrt(), self._log_weights",
        put="mean[:1], variance[:1].sqrt(), 0 * self._log_weights[:1]",
        test="tests/test_extending.py::test_ordinal_regression"),
    # what estimators share
    Variant("balanced-weights-without-classes", where="Labels._per_class",
        find="n_classes * counts[present]", put="counts[present]",
        test="tests/linear_model/test_class_weight.py::"
             "test_balanced_counts_weights_as_repetitions[two classes]"),
    Variant("jacobian-of-target-sign", where="Model._columns",
        find="-float((w @ dense * np.log(self.units.y_scale)).sum())",
        put="float((w @ dense * np.log(self.units.y_scale)).sum())",
        test="tests/linear_model/test_regression.py::test_conjugate_fit_is_exact"),
    Variant("plug-in-forgotten", where="evidence_of", find="learned",
        put="()",
        test="tests/evidence/test_plug_in.py::test_a_learned_noise_is_named_beside"),
    Variant("interrupt-swallowed", where="BaseVariational._fit",
        find="solution.interrupted", put="False",
        test="tests/solvers/test_interrupts.py::test_a_worse_state_is_not_kept"),
    Variant("worse-state-kept", where="better_state",
        find="after.value < before.value + after.se", put="after.value > before.value",
        test="tests/solvers/test_interrupts.py::test_a_warm_start_is_not_lost"),
    Variant("spread-as-a-difference-of-squares", where="Predictive.parts.of_rows",
        find="(means - mean).square_()", put="(means.square() - mean.square())",
        test="tests/linear_model/test_other_families.py::"
             "test_deviations_of_draws_around_a_large_mean"),
    Variant("density-of-a-mean-of-logs", where="Predictive.log_density.of_rows",
        find="torch.logsumexp(p.log_prob(f, y) + log_w[:, None], 0)",
        put="log_w.exp() @ p.log_prob(f, y)",
        test="tests/neural_network/test_networks.py::"
             "test_log_density_is_that_of_the_mixture"),
    Variant("newton-steps-no-shorter-than-a-count", where="LEAST_STEP",
        find="1e-18", put="1e-12",
        test="tests/linear_model/test_hard_data.py::"
             "test_one_huge_count_among_small_ones_is_fitted[1000000000000000.0]"),
    Variant("counts-below-the-level", where="smallest_counts",
        find="torch.where(is_high, k, high)",
        put="torch.where(is_high, k - 1, high)",
        test="tests/linear_model/test_hard_data.py::"
             "test_smallest_counts_are_found_in_few_steps[1.0]"),
    Variant("means-that-scales-move", where="NormalCoefficients.has_open_mean",
        find="ratio * added", put="0 * added",
        test="tests/linear_model/test_hard_data.py::"
             "test_means_that_grow_with_the_scale_are_medians"),
    Variant("weights-of-nodes-by-bounds", where="Nodes._is_open",
        find="OPEN * (before.z[0] - last.z[0])", put="math.inf",
        test="tests/linear_model/test_hard_data.py::"
             "test_means_that_grow_with_the_scale_are_medians"),
    Variant("chunks-without-their-columns", where="CoefficientsMixin._in_chunks",
        find="column[rows]", put="column[: X[rows].shape[0]]",
        test="tests/linear_model/test_hard_data.py::"
             "test_predictions_in_chunks_are_those_of_all_rows"),
    Variant("quantiles-of-equal-components", where="mixture_quantiles.excess",
        find="w @ likelihood.cdf(f, row)", put="likelihood.cdf(f, row).mean(0)",
        test="tests/linear_model/test_mixtures_over_scales.py::"
             "test_intervals_are_quantiles_of_draws[2]"),
    Variant("mixture-without-shares", where="QuadraturePredictive._components",
        find="self.log_shares[:, None]", put="0 * self.log_shares[:, None]",
        test="tests/linear_model/test_mixtures_over_scales.py::"
             "test_counts_are_those_of_draws"),
    Variant("scales-averaged-before-squares", where="Predictive.parts.of_rows",
        find="torch.tensordot(w, p.variance(f), 1)",
        put="torch.tensordot(w, p.variance(f).sqrt(), 1).square()",
        test="tests/neural_network/test_noise.py::"
             "test_predictions_follow_from_the_likelihood"),
    Variant("identity-without-components", where="_describe_object",
        find="f\"{_name(type(value))}({', '.join(parts)})\"", put="_name(type(value))",
        test="tests/neural_network/test_checkpoints.py::test_other_fits_are_refused"),
    # linear_model
    Variant("nodes-without-hyperpriors", where="find_nodes",
        find="form.log_density(t, s, ratio)", put="form.log_evidence(t, s, ratio)",
        test="tests/linear_model/test_exact_posterior.py::"
             "test_student_t_of_a_flat_prior[20]"),
    Variant("exact-noise-plugged-in", where="ExactCoefficients._mixture",
        find="-self.exact.nodes.noise.ravel()",
        put="0 * self.exact.nodes.noise.ravel() "
            "- (self.exact.nodes.weights * self.exact.nodes.noise).sum()",
        test="tests/linear_model/test_exact_posterior.py::"
             "test_student_t_of_a_flat_prior[20]"),
    Variant("exact-without-improbable-precisions", where="ExactCoefficients._mixture",
        find="w > NEGLIGIBLE", put="w > 1e-4",
        test="tests/linear_model/test_exact_posterior.py::"
             "test_finer_nodes_change_no_prediction"),
    Variant("exact-covariance-without-means",
        where="MixtureOverPrecisions.moments",
        find="torch.cat([apart, torch.diag((w @ variances).sqrt())])",
        put="torch.diag((w @ variances).sqrt())",
        test="tests/linear_model/test_exact_posterior.py::"
             "test_everything_is_that_of_the_exact_posterior[{'n': 9, 'd': 2}-"
             "{'weighted': True}]"),
    Variant("count-mean-at-posterior-mean", where="CountPredictive.parts",
        find="self.mean + 0.5 * variance", put="self.mean",
        test="tests/linear_model/test_counts.py::test_predictions_agree_with_draws"),
    Variant("count-std-without-noise", where="CountPredictive.parts",
        find="(w @ noise).sqrt()", put="0 * mean",
        test="tests/linear_model/test_counts.py::test_predictions_agree_with_draws"),
    Variant("silent-choice", where="_choice.choose",
        find="write_line(network, STAGE)", put="pass",
        test="tests/neural_network/test_choice.py::"
             "test_the_choice_is_a_stage_of_its_own"),
    Variant("grid-of-numbers-that-one-row-hides", where="coarse_grid",
        find="np.unique(y)", put="np.unique(np.round(y / np.abs(y).max(), 6))",
        test="tests/neural_network/test_integer_targets.py::"
             "test_which_targets_have_a_coarse_grid"),
    Variant("grid-of-any-number-of-steps", where="coarse_grid",
        find="scale > COARSE * step", put="False",
        test="tests/neural_network/test_integer_targets.py::"
             "test_which_targets_have_a_coarse_grid"),
    Variant("grid-by-rows", where="coarse_grid", find="float(weight.sum())",
        put="float(len(y))",
        test="tests/neural_network/test_integer_targets.py::"
             "test_weights_are_repetitions"),
    Variant("grid-of-the-batch", where="NetworkRegressorMixin._find_grids",
        find="is_auto and self._continues", put="False",
        test="tests/neural_network/test_integer_targets.py::"
             "test_batches_keep_the_grid_of_a_fit"),
    Variant("quantiles-on-the-grid", where="quantiles_of",
        find="y + p.step * (share.clamp(0, 1) - 0.5)", put="y",
        test="tests/likelihoods/test_rounded.py::test_a_network_of_integers"),
    Variant("density-in-units-of-the-fit", where="Predictive.log_density",
        find="dense @ log_units.to(y.device)", put="0.0",
        test="tests/likelihoods/test_rounded.py::test_the_step_is_found[0.25-0.0-True]"),
    Variant("network-without-origin", where="NetworkRegressorMixin._predictive",
        find="self._model.offset(None, len(X))", put="None",
        test="tests/neural_network/test_other_likelihoods.py::"
             "test_a_linear_network_is_a_regression_of_counts[poisson]"),
    Variant("information-in-the-other-direction", where="divergence",
        find="torch.special.entr(p) + p * log_q",
        put="torch.special.entr(log_q.exp()) + log_q.exp() * p.log()",
        test="tests/test_uncertainty.py::"
             "test_information_of_labels[mlp, classes]"),
    Variant("function-without-units",
        where="RegressionPredictionMixin.predict_uncertainty",
        find="variance.sqrt().numpy() * unit", put="variance.sqrt().numpy()",
        test="tests/test_uncertainty.py::"
             "test_linear_functions_vary_as_their_coefficients"),
    Variant("exposure-without-log", where="log_exposure", find="np.log(exposure)",
        put="exposure",
        test="tests/linear_model/test_counts.py::"
             "test_exposure_is_an_offset_of_the_log_rate"),
    Variant("intercept-moved-the-wrong-way", where="_mapped",
        find="y_scale * blocks['intercept'] - shift",
        put="y_scale * blocks['intercept'] + shift",
        test="tests/linear_model/test_units.py::"
             "test_moved_columns[two classes-default]"),
    Variant("regression-variance-units", where="RegressionPredictionMixin.predict",
        find="total * units.y_scale", put="total",
        test="tests/linear_model/test_regression.py::test_conjugate_fit_is_exact"),
    Variant("linear-std-without-noise", where="RegressionPredictionMixin.predict",
        find="variance + self._noise_variance()", put="variance",
        test="tests/linear_model/test_regression.py::"
             "test_conjugate_fit_is_exact[shape2-True-False]"),
    Variant("logistic-columns-exchanged", where="_two_columns",
        find="log_mixture_sigmoid(mean, variance)[::-1]",
        put="log_mixture_sigmoid(mean, variance)",
        test="tests/linear_model/test_logistic.py::"
             "test_probabilities_are_posterior_averages[1.0-mean_field]"),
    Variant("coefficient-variance-for-std", where="LinearModel.moments_in_units",
        find="variance.sqrt()", put="variance",
        test="tests/linear_model/test_regression.py::"
             "test_conjugate_fit_is_exact[shape2-True-False]"),
    Variant("features-not-centered", where="feature_units",
        find="_means(X, weight).clip(low, high)", put="np.zeros(X.shape[1])",
        test="tests/linear_model/test_units.py::"
             "test_moved_columns[two classes-default]"),
    Variant("scale-of-features-forgotten", where="_mapped",
        find="as_tensor(np.asarray(y_scale / x_scale, np.float64))", put="y_scale",
        test="tests/linear_model/test_units.py::"
             "test_columns_of_different_units[two classes-default]"),
    Variant("rare-words-are-freed", where="_column_units",
        find="np.where(is_usual, squares, sizes)", put="sizes",
        test="tests/linear_model/test_units.py::test_units_of_columns"),
    Variant("stored-zeros-are-values", where="_fraction_beside",
        find="own[some.data == 0] = 0.0", put="pass",
        test="tests/linear_model/test_units.py::test_units_of_columns"),
    Variant("nodes-of-the-higher-top-alone", where="Nodes._likeliest",
        find="abs(top.z - best.z) > 1", put="False",
        test="tests/priors/test_unknown_scale.py::"
             "test_two_likely_scales_are_both_integrated_over[0.7]"),
    Variant("inferred-scale-in-units-of-the-fit",
        where="CoefficientsMixin._scale_in_units", find="scale / unit",
        put="scale",
        test="tests/linear_model/test_units.py::"
             "test_scaled_columns[two classes-default-1e-09]"),
    Variant("nodes-variance-within", where="NormalCoefficients._average",
        find="variances + (means - mean).square()", put="variances",
        test="tests/priors/test_unknown_scale.py::"
             "test_the_posterior_is_the_mixture_of_the_fits_at_all_scales[mean_field]"),
    # neural_network
    Variant("network-noise-not-in-units",
        where="NetworkRegressorMixin._noise_likelihood",
        find="noise_in(units, self._noise_to_fix())", put="self._noise_to_fix()",
        test="tests/neural_network/test_noise.py::test_a_fixed_level_is_in_units_of_y"),
    Variant("explained-about-another-mean", where="explained_variance",
        find="np.average(y, weights=weight)", put="y.mean()",
        test="tests/neural_network/test_flat_fits.py::test_weights_equal_repetition"),
    Variant("noise-of-every-batch", where="NetworkRegressorMixin._noise_to_fix",
        find='self._continues and scale == "learn"', put="False",
        test="tests/neural_network/test_partial_fit.py::"
             "test_units_and_noise_stay_those_of_the_first_batch"),
    # partial_fit
    Variant("merged-rows-without-means", where="MergedRows.with_rows",
        find="table += origin + mean", put="table += origin",
        test="tests/linear_model/test_partial_fit.py::"
             "test_fifty_batches_are_one_fit[default]"),
    Variant("new-rows-discounted", where="MergingMixin._learn_batch",
        find="past.rows.discounted(forgetting).with_rows(rows)",
        put="past.rows.with_rows(rows).discounted(forgetting)",
        test="tests/linear_model/test_partial_fit.py::"
             "test_forgotten_rows_have_smaller_weights"),
    Variant("scales-that-do-not-learn", where="NodeRun._fits_of",
        find="log_p - place.value / self.weight", put="log_p",
        test="tests/linear_model/test_partial_fit.py::"
             "test_exact_posteriors_lose_nothing[1.0-prior1]"),
    Variant("forgotten-without-integral", where="_flattened",
        find="power * log_w + rest + constant", put="power * log_w + rest",
        test="tests/linear_model/test_partial_fit.py::"
             "test_exact_posteriors_lose_nothing[0.3-prior1]"),
    Variant("forgotten-without-prior", where="_flattened",
        find="normal_product((own, power), (first, 1 - power))",
        put="normal_product((own, power))",
        test="tests/linear_model/test_partial_fit.py::"
             "test_exact_posteriors_lose_nothing[0.3-prior0]"),
    Variant("scales-of-the-first-batch-only", where="MixtureAsPrior.can_reach_further",
        find="self.first is None or len(self.log_scales) < 2", put="True",
        test="tests/linear_model/test_partial_fit.py::"
             "test_a_drift_of_log_odds_is_followed"),
    Variant("new-scale-without-integral", where="MixtureAsPrior.with_one_beyond",
        find="self.posterior.log_weights[end] + constant + ratio",
        put="self.posterior.log_weights[end] + ratio",
        test="tests/linear_model/test_partial_fit.py::"
             "test_scales_beyond_those_of_the_first_batch[30.0]"),
    Variant("unit-of-a-constant-feature-stays", where="with_new_features",
        find="units.unseen is None", put="True",
        test="tests/linear_model/test_partial_fit.py::"
             "test_features_that_vary_later_take_their_unit_then[ard-40]"),
    Variant("a-broken-batch-stays", where="unchanged_by_errors",
        find="vars(estimator).clear()", put="before.clear()",
        test="tests/linear_model/test_partial_fit.py::"
             "test_a_broken_batch_changes_nothing[logistic]"),
    Variant("chunks-scored-after", where="_learn",
        find="scorer(estimator, X, y, **about) if is_fitted else np.nan",
        put="(estimator.partial_fit(X, y, **options, **own), "
            "scorer(estimator, X, y, **about))[1] if is_fitted else np.nan",
        test="tests/test_stream.py::test_scores_are_those_of_the_chunks_before"),
    Variant("target-among-the-features", where="_tables",
        find="[name for name in names if name != target]", put="names",
        test="tests/test_stream.py::test_tables[pandas]"),
    Variant("learned-chunks-once-more", where="stream",
        find="islice(chunks_of(chunks, target), len(table['n_rows']), None)",
        put="chunks_of(chunks, target)",
        test="tests/test_stream.py::test_a_stream_is_resumed_where_it_was"),
    Variant("new-outputs-in-the-place-of-known-ones", where="_widened",
        find="wide[..., where] = known", put="wide[..., :known.shape[-1]] = known",
        test="tests/neural_network/test_partial_fit.py::"
             "test_new_classes_get_outputs_of_their_own[known1]"),
    Variant("two-outputs-of-twice-the-variance", where="_widened",
        find="[sqrt(0.5)] * 2", put="[1.0, 1.0]",
        test="tests/neural_network/test_partial_fit.py::"
             "test_new_classes_get_outputs_of_their_own[known0]"),
    Variant("distilled-classes-of-equal-weight", where="distill",
        find="network.fit(scaler.transform(rows)[row], labels, p[row, label])",
        put="network.fit(scaler.transform(rows)[row], labels)",
        test="tests/neural_network/test_distill.py::test_classes[pandas]"),
    Variant("distilled-deviations-without-their-factor",
        where="DistilledRegressor.predict", find="f[:, 1] / np.sqrt(2)",
        put="f[:, 1]",
        test="tests/neural_network/test_distill.py::test_deviations_that_vary"),
    Variant("origin-of-exposure-in-functions", where="CoefficientsMixin._mean",
        find="f - self._model.units.f_mean", put="f",
        test="tests/linear_model/test_counts.py::test_functions_average_to_predictions"),
    # model_selection
    Variant("no-correction-for-models", where="n_standard_errors", find="2 * n_models",
        put="2",
        test="tests/model_selection/test_evidence_search.py::"
             "test_intervals_hold_together"),
    Variant("ends-of-intervals-exchanged", where="Comparison.is_above",
        find="self.low[k] - self.high[j]", put="self.high[k] - self.low[j]",
        test="tests/model_selection/test_evidence_search.py::"
             "test_wrong_decisions_are_rare"),
    Variant("learned-hyperparameters-exchanged", where="Comparison.beats",
        find="self.learned[k] <= self.learned[j]",
        put="self.learned[j] <= self.learned[k]",
        test="tests/model_selection/test_evidence_search.py::"
             "test_learned_hyperparameters_exclude_no_model_without_them"),
    Variant("model-prior-without-log", where="log_prior", find="np.log(weights)",
        put="weights",
        test="tests/model_selection/test_evidence_search.py::test_model_prior[array]"),
    Variant("batched-rows-of-the-first-split", where="_Piece._part",
        find="rows = job.train",
        put="rows = self.first = getattr(self, 'first', job.train)",
        test="tests/model_selection/test_batched_search.py::"
             "test_continuous_hyperparameters"),
    # changepoint
    Variant("changepoint-survival", where="Filter.branch", find="np.log1p(-p)",
        put="np.log(p)",
        test="tests/changepoint/test_truth.py::test_moments_of_counts[model1]"),
    Variant("changepoint-length", where="Filter.branch",
        find="self.t - self.start", put="self.t - self.start + 1",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-trials]"),
    Variant("changepoint-dropped-evidence", where="Filter._prune",
        find="self.log_evidence += math.log1p(-lost)",
        put="self.log_evidence += 0 * lost",
        test="tests/changepoint/test_truth.py::"
             "test_dropped_mass_bounds_what_pruning_does"),
    Variant("changepoint-threshold-power", where="Settings.log_least",
        find="max(1.0, n_parameters / 2) * math.log(self.min_probability)",
        put="math.log(self.min_probability)",
        test="tests/changepoint/test_pruning.py::"
             "test_other_models_of_many_series[BernoulliTrials()-0.7]"),
    Variant("changepoint-rank-one", where="downdate",
        find="np.cumsum(scaled, axis=-2) - scaled", put="np.cumsum(scaled, axis=-2)",
        test="tests/changepoint/test_recursion.py::"
             "test_predictions_are_those_before_the_row[trend]"),
    Variant("changepoint-student-width", where="log_student", find="leverage",
        put="0 * leverage",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-regression]"),
    Variant("changepoint-jacobian", where="Stream.log_evidence",
        find="self.filter.log_evidence + self.log_slope - log_unit",
        put="self.filter.log_evidence + self.log_slope + log_unit",
        test="tests/changepoint/test_units.py::"
             "test_streams_that_begin_with_a_constant[2]"),
    Variant("changepoint-score-slope", where="NormalScore.__call__",
        find="np.log(slope) - excess", put="np.log(slope)",
        test="tests/changepoint/test_noise.py::test_normal_scores[4.0]"),
    Variant("changepoint-dispersion", where="PoissonCounts.log_predictive",
        find="1 + size * b", put="size * b",
        test="tests/changepoint/test_noise.py::test_overdispersed_counts"),
    Variant("changepoint-time", where="Designs.ages",
        find="row.time - begin", put="row.index - state['start']",
        test="tests/changepoint/test_noise.py::"
             "test_the_index_is_the_time_of_trends[None]"),
    Variant("changepoint-site-fit", where="sites", find="2 * fit", put="fit",
        test="tests/changepoint/test_robust.py::"
             "test_short_segments_have_the_optimal_posterior[1.0-1.5-1]"),
    Variant("changepoint-integral-power", where="_terms", find="1.5", put="0.5",
        test="tests/changepoint/test_robust.py::"
             "test_short_segments_have_the_optimal_posterior[1.0-1.5-1]"),
    Variant("changepoint-predict-std", where="Reading.moments",
        find="(self.mean - mean) ** 2", put="0.0",
        test="tests/changepoint/test_truth.py::test_moments_of_counts[model1]"),
    Variant("changepoint-trend-age", where="ages", find="row.time - begin",
        put="row.time + 0 * begin",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-trend]"),
    Variant("changepoint-known-noise", where="RegressionGroup.__init__",
        find="KNOWN_DF", put="1000.0",
        test="tests/changepoint/test_truth.py::"
             "test_all_segmentations_of_eighteen_rows[hazard0]"),
    Variant("changepoint-smoothing-hazard", where="Filter.branch",
        find="self.probability * p", put="self.probability",
        test="tests/changepoint/test_changes.py::"
             "test_probability_of_a_change_in_an_interval"),
    # plotting
    Variant("posterior-display-prior-units", where="_prior_density",
        find="built.log_prob(theta[:, None]).exp().numpy() / unit",
        put="built.log_prob(theta[:, None]).exp().numpy()",
        test="tests/plotting/test_displays_of_fits.py::"
             "test_densities_of_regressions_are_in_units_of_y"),
    Variant("evidence-display-right-ends", where="draw_bars",
        find="upper - lower", put="upper",
        test="tests/plotting/test_plotting.py::test_bounds_on_the_artists"),
    # testing
    Variant("check-numeric-gradient", where="numeric_gradient", find="2 * h", put="h",
        test="tests/testing/test_testing.py::test_priors"),
    Variant("check-variance-derivative", where="compare_integrals", find="2 * h * std",
        put="2 * h", test="tests/testing/test_testing.py::test_losses"),
    # inference
    Variant("density-without-jacobian", where="DensityTarget.log_joint",
        find="self.density(values, rows) + log_jacobian",
        put="self.density(values, rows)",
        test="tests/inference/test_variational_inference.py::"
             "test_densities_on_supports_integrate_to_one[positive]"),
    Variant("fixed-draws-without-entropy-slope", where="_Whitened.evaluate",
        find="moved + normal.entropy()", put="moved",
        test="tests/inference/test_variational_inference.py::"
             "test_gradients_of_fixed_draws[full_rank]"),
    Variant("batches-not-scaled-up", where="RowsDensityTarget.likelihood",
        find="found * (self.n_total / n_used)", put="found",
        test="tests/inference/test_minibatches.py::"
             "test_gradients_of_batches_are_unbiased[False]"),
    Variant("anchor-of-all-rows-only", where="RowsDensityTarget.log_joint",
        find="slope - own_slope", put="slope",
        test="tests/inference/test_minibatches.py::"
             "test_gradients_of_batches_are_unbiased[True]"),
    Variant("changes-without-wide-draws", where="_changes._weighted",
        find="wide.sample(n_draws, generator)",
        put="normal.sample(n_draws, generator)",
        test="tests/inference/test_variational_inference.py::"
             "test_what_no_normal_is_near_is_not_called_converged[0-heavy]"),
]
