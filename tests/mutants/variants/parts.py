"""Wrong variants of the ground and the parts."""

from tests.mutants.places import Variant

# A few lines for each, by folder.
# fmt: off
VARIANTS = [
    # base
    Variant("inputs-without-names", where="ModulePredictor._call",
        find="X[:, at]", put="X[:, :3]",
        test="tests/neural_network/test_modules.py::test_inputs_by_name"),
    Variant("rounded-by-a-whole-step", where="RoundedLikelihood.log_prob",
        find="self._step / 2 / noise.scale", put="self._step / noise.scale",
        test="tests/likelihoods/test_rounded.py::test_tails_keep_their_digits"),
    Variant("rounded-one-end", where="RoundedLikelihood.log_prob",
        find="for_high * (high - high.detach()) - for_low * (low - low.detach())",
        put="for_high * (high - high.detach())",
        test="tests/likelihoods/test_rounded.py::test_derivatives[4.0]"),
    Variant("poisson-pass-without-weights", where="_PoissonPass._visit",
        find="torch.mul(rate - y, weight, out=self._slope)",
        put="torch.sub(rate, y, out=self._slope)",
        test="tests/likelihoods/test_noise.py::"
             "test_passes_are_automatic_derivatives[PoissonLikelihood()]"),
    Variant("normal-transform-transposed", where="_times", find="matrix.T",
        put="matrix", test="tests/base/test_base.py::test_draws_of_a_normal[full]"),
    Variant("normal-variance-of-columns", where="NormalForm.variance",
        find="squared.sum(-1)", put="squared.sum(-2)",
        test="tests/base/test_base.py::test_low_rank_normal"),
    Variant("normal-entropy-constant", where="NormalForm.entropy", find="1 + LOG_2PI",
        put="LOG_2PI",
        test="tests/divergences/test_closed_forms.py::"
             "test_kl_to_a_prior_that_is_not_normal[True-diag]"),
    Variant("woodbury-sign", where="NormalForm.squared_distance",
        find="z.square().sum(-1) - inner.square().sum(-1)",
        put="z.square().sum(-1) + inner.square().sum(-1)",
        test="tests/base/test_base.py::test_low_rank_normal"),
    Variant("coordinates-as-they-are", where="Layout.unpack",
        find="BIJECTIONS[block.bijection](value)", put="value",
        test="tests/base/test_base.py::test_layout_unpacks_in_order"),
    # utils
    Variant("log-mean-exp-count", where="log_mean_exp",
        find="torch.logsumexp(values, dim) - math.log(values.shape[dim])",
        put="torch.logsumexp(values, dim)",
        test="tests/evidence/test_evidence.py::test_estimates_of_known_weights"),
    Variant("gamma-density-jacobian", where="log_gamma_density", find="shape * t",
        put="(shape - 1) * t",
        test="tests/solvers/test_conjugate.py::test_gamma_posterior"),
    Variant("noise-nodes-jacobian", where="noise_nodes", find="shape * t",
        put="(shape - 1) * t",
        test="tests/linear_model/test_regression.py::test_predictive_distribution"),
    Variant("expected-log-kernel", where="_log_rule", find="0.5 * widened",
        put="widened",
        test="tests/priors/test_expectations.py::test_expected_log_prob"),
    Variant("gumbel-mean", where="_integrate", find="high - value - EULER",
        put="high - value",
        test="tests/linear_model/test_multinomial.py::"
             "TestExpectations::test_independent_f"),
    Variant("conditioned-others", where="log_expect_conditioned",
        find="f[:, :-1] += (log_rest - others)[:, None]",
        put="f[:, :-1] -= others[:, None]",
        test="tests/expectations/test_conditioning.py::test_log_probabilities_of_few_classes"),
    Variant("covariance-of-differences", where="pairwise_split", find="2 * covariance",
        put="covariance",
        test="tests/linear_model/test_multinomial.py::"
             "TestExpectations::test_weak_covariances"),
    Variant("sparse-shift-sign", where="SparseRows.standardized", find="own - origin",
        put="origin - own",
        test="tests/linear_model/test_sparse.py::test_standardized_rows"),
    Variant("dense-gram-last-chunk", where="dense_gram.gram_of",
        find="out += np.matmul(buffer.T, buffer)",
        put="out = np.matmul(buffer.T, buffer)",
        test="tests/utils/test_dense_rows.py::test_gram"),
    Variant("rows-not-shifted", where="ShiftedRows.__getitem__",
        find="self.X[rows].double() - self.offset", put="self.X[rows].double()",
        test="tests/base/test_rows.py::test_rows_standardized_where_they_are_read"),
    Variant("interval-tails", where="interval_levels", find="(1 - coverage) / 2",
        put="1 - coverage",
        test="tests/neural_network/test_networks.py::"
             "test_quantiles_invert_the_mixture"),
    Variant("transformed-density-without-jacobian",
        where="TransformedTarget.predict_log_density",
        find="found.predict_log_density(X, z, **options) - log_slope",
        put="found.predict_log_density(X, z, **options)",
        test="tests/metrics/test_metrics.py::test_one_scoring_for_all_regressors"),
    Variant("lost-interrupt", where="raising_interrupts",
        find="raise KeyboardInterrupt", put="pass",
        test="tests/utils/test_interrupts.py::"
             "test_blocks_that_raise_what_was_swallowed"),
    Variant("mixture-softplus-curvature", where="mixture_softplus",
        find="weights / std", put="weights * std",
        test="tests/expectations/test_rules.py::test_expect_softplus"),
    # predictors
    Variant("linear-variance-without-square", where="LinearPredictor._moments_of",
        find="X.square()", put="X.abs()",
        test="tests/objectives/test_alpha_energy.py::"
             "test_the_forms_meet_for_many_rows[bernoulli]"),
    Variant("mlp-prior-size", where="MLPPredictor.__init__", find="math.sqrt(fan_in)",
        put="fan_in",
        test="tests/objectives/test_importance_weighted.py::test_what_is_not_known"),
    Variant("mlp-local-std", where="MLPPredictor.sample_locally", find="v.sqrt()",
        put="v",
        test="tests/predictors/test_predictors.py::"
             "test_local_reparameterization_keeps_every_row"),
    Variant("variance-of-a-factor-left-out", where="LinearPredictor._moments_of",
        find="found[0] + found[1]", put="found[0]",
        test="tests/posteriors/test_low_rank.py::test_moments_of_f[1-True-True]"),
    Variant("passes-activation-slope", where="MLPPasses.pull_back",
        find="self._multiply(out, values)", put="None",
        test="tests/objectives/test_analytic_steps.py::"
             "test_single_precision[categorical]"),
    # likelihoods
    Variant("bernoulli-slope-without-label",
        where="BernoulliLikelihood.log_prob_derivatives", find="sign * p", put="p",
        test="tests/losses/test_losses.py::"
             "test_log_prob_derivatives[BernoulliLikelihood()]"),
    Variant("bernoulli-power-of-normalizer",
        where="BernoulliLikelihood.log_power_integral",
        find="c * softplus(-f, threshold=40)", put="softplus(-f, threshold=40)",
        test="tests/losses/test_losses.py::"
             "test_losses_are_proper_for_classes[BetaLoss(beta=2)-0.8]"),
    Variant("gaussian-expected-without-half",
        where="GaussianLikelihood.expected_log_loss", find="0.5 * precision",
        put="precision",
        test="tests/losses/test_losses.py::"
             "test_expected_loss[0.001-GaussianLikelihood()-LogLoss()]"),
    Variant("count-sums-without-corrections", where="_log_power_sum",
        find="weights.new_tensor(JOINT)", put="weights.new_tensor([1, 1, 1, 0, 0, 0])",
        test="tests/likelihoods/test_likelihoods.py"),
    Variant("poisson-rate-at-the-mean", where="PoissonLikelihood.expected_log_loss",
        find="mean + 0.5 * std_or_cov.square()", put="mean",
        test="tests/likelihoods/test_likelihoods.py::"
             "test_expected_rate_is_that_of_a_lognormal"),
    Variant("negative-binomial-inverse-dispersion",
        where="NegativeBinomialLikelihood._log_mass", find="1 / self._alpha",
        put="self._alpha",
        test="tests/likelihoods/test_likelihoods.py::"
             "test_proper_for_mean_and_dispersion[LogLoss()]"),
    Variant("student-t-pull", where="StudentTLikelihood.standard_slope",
        find="self.df + 1", put="self.df",
        test="tests/likelihoods/test_likelihoods.py::"
             "test_derivatives[StudentTLikelihood()]"),
    Variant("softmax-hessian-without-diagonal",
        where="CategoricalLikelihood.log_prob_derivatives", find="torch.diag_embed(p)",
        put="torch.diag_embed(p.square())",
        test="tests/linear_model/test_multinomial.py::"
             "TestCategoricalLikelihood::test_masses_powers_and_derivatives"),
    # losses
    Variant("beta-loss-integral-factor", where="BetaLoss.__call__",
        find="torch.exp(likelihood.log_power_integral(f, self.beta)) / self.beta",
        put="torch.exp(likelihood.log_power_integral(f, self.beta))",
        test="tests/losses/test_losses.py::"
             "test_losses_are_proper_for_classes[BetaLoss(beta=2)-0.8]"),
    Variant("gamma-loss-slope-sign", where="GammaLoss.expected",
        find="factor * found[1]", put="-factor * found[1]",
        test="tests/likelihoods/test_likelihoods.py::"
             "test_expected_loss[0.0-StudentTLikelihood(df=50, noise_scale=2)-"
             "GammaLoss(gamma=1.5)]"),
    Variant("stein-curvature-identity", where="CallableLoss._integrate",
        find="z.square() - 1", put="z.square()",
        test="tests/losses/test_callable_losses.py::"
             "test_expectations_of_kinks[absolute-3.0]"),
    # priors
    Variant("half-cauchy-jacobian", where="scale_nodes", find="size * log_scale",
        put="(size + 1) * log_scale",
        test="tests/priors/test_unknown_scale.py::"
             "test_density_is_the_integral_over_the_scale[2]"),
    Variant("independent-normalizer", where="BuiltIndependent.log_prob_terms",
        find="self.scale.log()", put="0.0",
        test="tests/priors/test_priors.py::"
             "test_density_integrates_to_one[Laplace(scale=0.3)]"),
    Variant("normal-expected-without-variance", where="_BuiltNormal._expected",
        find="mean.square() + std.square()", put="mean.square()",
        test="tests/divergences/test_closed_forms.py::"
             "test_kl_to_a_prior_that_is_not_normal[True-diag]"),
    Variant("ard-degrees-of-freedom", where="ARD.build", find="2 * float(self.shape)",
        put="float(self.shape)",
        test="tests/priors/test_priors.py::test_ard_integrates_the_precisions_out"),
    Variant("precision-without-jacobian", where="GammaScales.terms", find="2 * a - 1",
        put="2 * a - 2",
        test="tests/evidence/test_scale_mixtures.py::test_scales_give_the_prior_back"),
    Variant("bounded-divergences-unseen", where="Divergence.collapse",
        find="self.kl_weight is not None", put="self.kl_weight is None",
        test="tests/test_extending.py::test_bounded_divergences_are_reported[bounded]"),
    # posteriors
    Variant("flow-determinant-added", where="FlowPosterior.draw_white",
        find="_log_normal(noise) - log_det", put="_log_normal(noise) + log_det",
        test="tests/test_extending.py::test_flow"),
    Variant("auxiliary-bound-without-own-noise", where="AuxiliaryPosterior.draw_white",
        find="self.log_terms(u, e, self.params, generator)",
        put="self.log_terms(u, e, self.params, generator)[1:]",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_bounds_enclose_the_elbo_and_meet[1-40-20-prior]"),
    Variant("auxiliary-bound-below-with-own-noise",
        where="AuxiliaryPosterior.draw_below",
        find="self.log_terms(u, e, self.params, generator)[1:]",
        put="self.log_terms(u, e, self.params, generator)",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_bounds_enclose_the_elbo_and_meet[1-40-20-prior]"),
    Variant("auxiliary-terms-without-proposal", where="AuxiliaryPosterior.log_terms",
        find="self.log_joint(u, e, params) - r.log_prob(e)",
        put="self.log_joint(u, e, params)",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_bounds_enclose_the_elbo_and_meet[1-40-20-learned]"),
    Variant("auxiliary-noise-without-density", where="AuxiliaryPosterior.log_joint",
        find="self.conditional(e, params).log_prob(u) + log_noise",
        put="self.conditional(e, params).log_prob(u)",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_weights_have_the_mean_of_the_evidence"),
    Variant("inner-chain-stays", where="AuxiliaryPosterior._with_score",
        find="self.chain(at.detach(), e, fixed, generator)", put="e",
        test="tests/posteriors/test_semi_implicit.py::test_unbiased_gradients[2]"),
    Variant("factorized-anchor-of-marginals", where="AuxiliaryPosterior.near",
        find="precision.diagonal().rsqrt()", put="normal.variance.sqrt()",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_coordinates_of_a_normal_fit"),
    Variant("bent-network-at-its-own-start", where="BayesianNetwork._at_normal_fit",
        find="posterior.near(found.posterior.as_normal())", put="posterior",
        test="tests/posteriors/test_semi_implicit.py::"
             "test_networks_start_at_a_factorized_fit"),
    Variant("mean-field-variance-for-std", where="_DiagonalPosterior._params_of",
        find="0.5 * normal.variance.log()", put="normal.variance.log()",
        test="tests/posteriors/test_posteriors.py::"
             "test_starting_point_is_a_valid_posterior[MeanFieldNormal()]"),
    Variant("draws-without-path-gradient", where="NormalPosterior.draw",
        find="normal.transform(eps)", put="normal.transform(eps).detach()",
        test="tests/posteriors/test_posteriors.py::"
             "test_draws_are_differentiable_in_the_parameters[MeanFieldNormal()]"),
    Variant("gamma-rate-for-scale", where="_GammaPosterior.draw",
        find="log_gamma_draws(shape, generator) - log_rate",
        put="log_gamma_draws(shape, generator) + log_rate",
        test="tests/solvers/test_conjugate.py::test_gamma_posterior"),
    Variant("ensemble-mean-of-logs", where="Mixture.log_prob",
        find="torch.logsumexp(logs + log_weights[:, None], 0)",
        put="(logs * log_weights.exp()[:, None]).sum(0)",
        test="tests/posteriors/test_ensemble.py::test_density_is_that_of_the_mixture"),
    Variant("mixture-strata-count-equally", where="Mixture.draw_strata",
        find="n_members * self.log_weights.exp()[component]",
        put="0 * self.log_weights[component] + 1",
        test="tests/posteriors/test_mixture_of_normals.py::"
             "test_every_parameter_has_the_gradient_of_the_bound[mean_field-stl]"),
    Variant("mixture-strata-in-order", where="Mixture.draw_strata",
        find="torch.argsort(rand(generator, n_all))",
        put="torch.arange(n_all)",
        test="tests/posteriors/test_mixture_of_normals.py::"
             "test_every_parameter_has_the_gradient_of_the_bound[product-stl]"),
    Variant("mixture-weights-without-gradient", where="Mixture.draw_strata",
        find="self.log_weights.exp()", put="self.log_weights.exp().detach()",
        test="tests/posteriors/test_mixture_of_normals.py::"
             "test_every_parameter_has_the_gradient_of_the_bound[mean_field-stl]"),
    Variant("mixture-drawn-equally-often", where="Mixture.draw",
        find="self.log_weights.detach().double().exp()",
        put="torch.softmax(0 * self.log_weights.detach().double(), 0)",
        test="tests/posteriors/test_mixture_of_normals.py::"
             "test_density_integrates_to_one_and_agrees_with_draws[mean_field]"),
    Variant("mixture-at-the-first-mode", where="_MixturePosterior.near_modes",
        find="normals[k % n_modes]", put="normals[0]",
        test="tests/posteriors/test_mixture_of_normals.py::"
             "test_components_start_apart_at_the_modes"),
    Variant("mixture-as-prior-without-spread", where="MixtureOverScales.as_prior",
        find="torch.tensordot(weights, covariances, 1) + moved.T @ moved",
        put="torch.tensordot(weights, covariances, 1)",
        test="tests/posteriors/test_over_scales.py::"
             "test_as_a_prior_it_is_the_normal_of_its_moments[family0]"),
    # divergences
    Variant("power-integral-log-determinants-swapped", where="log_power_integral",
        find="(1 - a) * _half_log_det(q, is_diagonal)",
        put="(1 - b) * _half_log_det(q, is_diagonal)",
        test="tests/divergences/test_closed_forms.py::"
             "test_log_power_integral[1.5--0.5-diag-diag]"),
    Variant("power-integral-distance-sign", where="log_power_integral",
        find="0.5 * a * b * parts[1]", put="-0.5 * a * b * parts[1]",
        test="tests/divergences/test_orders.py::"
             "test_one_dimension_against_quadrature[1.05-BetaDivergence-0.4]"),
    Variant("terms-outer-sign", where="_IntegralDivergence.terms",
        find="a * b * squared_outer(u, inverse) - inverse",
        put="-a * b * squared_outer(u, inverse) - inverse",
        test="tests/divergences/test_closed_forms.py::"
             "test_terms_are_derivatives[diag-Renyi()-'diag']"),
    Variant("terms-own-integral-without-its-order", where="_IntegralDivergence.terms",
        find="(self._order - 1) * rest[0]", put="rest[0]",
        test="tests/divergences/test_closed_forms.py::"
             "test_terms_are_derivatives[diag-GammaDivergence()-'diag']"),
    Variant("renyi-classical-scaling", where="Renyi._combine",
        find="self.alpha * (self.alpha - 1)", put="self.alpha - 1",
        test="tests/divergences/test_orders.py::"
             "test_near_the_limit_kl[Renyi-0.1-0.011]"),
    Variant("gamma-without-inverse-order", where="GammaDivergence._combine",
        find="((own - cross) / self._b + norm - cross) / self.gamma",
        put="(own - cross) / self._b + norm - cross",
        test="tests/divergences/test_orders.py::"
             "test_near_the_limit_kl[GammaDivergence-0.1-0.011]"),
    Variant("jeffreys-one-direction-twice", where="Jeffreys.closed_form",
        find="kl_of_normals(pi, q)", put="kl_of_normals(q, pi)",
        test="tests/divergences/test_closed_forms.py::"
             "test_entropy_weight[diag-Jeffreys()]"),
    Variant("kl-reversed", where="KL.closed_form", find="kl_of_normals(q, pi)",
        put="kl_of_normals(pi, q)",
        test="tests/divergences/test_closed_forms.py::"
             "test_kl_is_its_integral[1.0-diag-diag]"),
    Variant("kl-weight-forgotten-in-pull", where="KL.terms",
        find="w * subtract(exact, precision)", put="subtract(exact, precision)",
        test="tests/divergences/test_closed_forms.py::"
             "test_terms_are_derivatives[diag-KL(weight=0.4)-'diag']"),
    Variant("f-divergence-ratio-inverted", where="FDivergence.monte_carlo",
        find="log_q - log_prior", put="log_prior - log_q",
        test="tests/divergences/test_orders.py::"
             "test_f_divergences_that_are_known[chi2-closed4]"),
    Variant("nodes-factors-not-updated", where="_factors", find="MAX_UPDATES", put="0",
        test="tests/divergences/test_nodes.py::test_correlated_coordinates"),
    Variant("nodes-equal-weights", where="_left_over", find="log_w + speed.log()",
        put="log_w",
        test="tests/divergences/test_nodes.py::test_independent_coordinates"),
    Variant("nodes-covariance-without-half", where="node_derivatives",
        find="2 * by_covariance", put="by_covariance",
        test="tests/divergences/test_nodes.py::test_normal_priors"),
    Variant("renyi-of-gammas-prior-rate", where="Renyi.between_gammas",
        find="(1 - a) * b0", put="(1 - a) * a0",
        test="tests/divergences/test_nodes.py::test_gammas"),
]
