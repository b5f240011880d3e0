"""Wrong variants of estimators, searches, changepoints, displays and checks."""

from tests.mutants.places import Variant

# A few lines for each, by folder.
# fmt: off
VARIANTS = [
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
    Variant("changepoint-survival", where="Filter.advance", find="np.log1p(-ends)",
        put="np.log(ends)",
        test="tests/changepoint/test_truth.py::test_moments_of_counts[model1]"),
    Variant("changepoint-length", where="Filter._hazards",
        find="np.maximum(t - start, 1) - 1", put="np.maximum(t - start - 1, 1) - 1",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-trials]"),
    Variant("changepoint-dropped-evidence", where="Filter._prune",
        find="self.log_total += math.log1p(-lost)",
        put="self.weights -= math.log1p(-lost)",
        test="tests/changepoint/test_truth.py::"
             "test_dropped_mass_bounds_what_pruning_does"),
    Variant("changepoint-threshold-power", where="log_threshold",
        find="max(1.0, n_parameters / PARAMETERS) * math.log(min_probability)",
        put="math.log(min_probability)",
        test="tests/changepoint/test_pruning.py::"
             "test_other_models_of_many_series[BernoulliTrials()-0.7]"),
    Variant("changepoint-units-constant-start", where="Feed._burn_in_of",
        find="np.maximum(begins - 1, 0)", put="0",
        test="tests/changepoint/test_units.py::"
             "test_streams_that_begin_with_a_constant"),
    Variant("changepoint-isolated-change", where="locate",
        find="probability - beside(total, ends)", put="probability",
        test="tests/changepoint/test_changes.py::"
             "test_a_change_has_rows_without_any_beside_it"),
    Variant("changepoint-earlier-segments", where="Records._look_back",
        find="1 + start", put="2 + start",
        test="tests/changepoint/test_changes.py::"
             "test_streams_with_hardly_any_memory[5]"),
    Variant("changepoint-rank-one", where="downdate",
        find="np.cumsum(scaled, axis=-2) - scaled", put="np.cumsum(scaled, axis=-2)",
        test="tests/changepoint/test_recursion.py::"
             "test_predictions_are_those_before_the_row[autoregression]"),
    Variant("changepoint-student-width", where="log_student", find="leverage",
        put="0 * leverage",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-regression]"),
    Variant("changepoint-jacobian", where="Stream.log_jacobian",
        find="-float(self.n_scored @ np.log(self.scaling.scale))",
        put="float(self.n_scored @ np.log(self.scaling.scale))",
        test="tests/changepoint/test_units.py::"
             "test_streams_that_begin_with_a_constant[2]"),
    Variant("changepoint-site-fit", where="sites", find="2 * fit", put="fit",
        test="tests/changepoint/test_beta.py::"
             "test_sites_are_gradients_in_the_moments[case2]"),
    Variant("changepoint-integral-power", where="_terms", find="1.5", put="0.5",
        test="tests/changepoint/test_beta.py::"
             "test_expected_gain_is_the_expectation[case1]"),
    Variant("changepoint-predict-std", where="predict",
        find="variance + np.einsum('rk,rsk->rs', weight, gap)", put="variance",
        test="tests/changepoint/test_truth.py::test_moments_of_counts[model1]"),
    Variant("changepoint-trend-age", where="ConjugateGroup.read_one",
        find="row.index - state['start']", put="row.index + 0 * state['start']",
        test="tests/changepoint/test_recursion.py::"
             "test_posteriors_and_evidence[age-trend]"),
    # plotting
    Variant("posterior-display-prior-units", where="_prior_density",
        find="built.log_prob(theta[:, None]).exp().numpy() / unit",
        put="built.log_prob(theta[:, None]).exp().numpy()",
        test="tests/plotting/test_displays_of_fits.py::"
             "test_densities_of_regressions_are_in_units_of_y"),
    Variant("evidence-display-right-ends", where="EvidenceBoundsDisplay._draw_bars",
        find="upper - lower", put="upper",
        test="tests/plotting/test_plotting.py::test_bounds_on_the_artists"),
]
