// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mean over runs, its 95 % interval, that of a count, and straight lines through points.

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The same for more: the value at 60, which errs by less than 2 %.
const T95_MANY: f64 = 2.000;

/// Mean and half width of the 95 % interval of the mean; no width for one value.
#[must_use]
pub fn mean_ci95(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len();
    if n == 0 {
        return (f64::NAN, None);
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    if n == 1 {
        return (mean, None);
    }
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    let deviation = (squares / (n - 1) as f64).sqrt();
    let t = T95.get(n - 2).copied().unwrap_or(T95_MANY);
    (mean, Some(t * deviation / (n as f64).sqrt()))
}

/// The exact 95 % interval of the mean of a Poisson count (Garwood 1936): with less than the lower end so many are seen in one of 40
/// cases, with more than the upper end so few.
#[must_use]
pub fn poisson_95(count: f64) -> (f64, f64) {
    // Up to so many, where this is the mean.
    let up_to = |most: f64, mean: f64| {
        let one = |n: f64| libm::exp(n * libm::log(mean) - mean - libm::lgamma(n + 1.0));
        (0..=most as u64).map(|n| one(n as f64)).sum::<f64>()
    };
    let mean = |is_below: &dyn Fn(f64) -> bool| {
        let (mut low, mut high) = (0.0, 2.0 * count + 20.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if is_below(middle) { low = middle } else { high = middle }
        }
        low
    };
    let least = match count {
        count if count < 1.0 => 0.0,
        count => mean(&|mean| 1.0 - up_to(count - 1.0, mean) < 0.025),
    };
    (least, mean(&|mean| up_to(count, mean) > 0.025))
}

/// Share of the variance that a straight line explains (R²); 1 for values that are all equal.
#[must_use]
pub fn r_squared(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (mx, my) =
        (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let sum = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>();
    let xy = sum(&|p| (p.0 - mx) * (p.1 - my));
    let (xx, yy) = (sum(&|p| (p.0 - mx).powi(2)), sum(&|p| (p.1 - my).powi(2)));
    if yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a table: five values 1…5 have mean 3, deviation 1.5811, t(4) = 2.776.
    #[test]
    fn the_interval_is_students() {
        let (mean, ci) = mean_ci95(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((mean - 3.0).abs() < 1e-12);
        assert!((ci.unwrap() - 2.776 * 1.581_138_83 / 5f64.sqrt()).abs() < 1e-6);
        assert_eq!(mean_ci95(&[7.0]), (7.0, None));
        assert!(mean_ci95(&[]).0.is_nan());
        // 31 runs have 30 degrees of freedom, 32 are beyond the table
        let many: Vec<f64> = (0..32).map(f64::from).collect();
        assert!(mean_ci95(&many).1 < mean_ci95(&many[..31]).1.map(|w| w * 1.1));
    }

    /// Against a table of the chi-squared distribution.
    #[test]
    fn the_interval_of_a_count_is_exact() {
        for (count, least, most) in
            [(0.0, 0.0, 3.689), (1.0, 0.025, 5.572), (8.0, 3.454, 15.763), (100.0, 81.364, 121.627)]
        {
            let seen = poisson_95(count);
            assert!((seen.0 - least).abs() < 1e-3 && (seen.1 - most).abs() < 1e-3, "{seen:?}");
        }
        let (least, most) = poisson_95(3400.0);
        assert!(least > 3280.0 && most < 3520.0, "{least} {most}");
    }

    #[test]
    fn a_line_explains_a_line_and_not_a_parabola() {
        let points = |f: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
            (-5..=5).map(|i| (f64::from(i), f(f64::from(i)))).collect()
        };
        assert!((r_squared(&points(&|x| 3.0 - 2.0 * x)) - 1.0).abs() < 1e-12);
        assert!(r_squared(&points(&|x| x * x)) < 1e-12);
        assert!((r_squared(&points(&|_| 4.0)) - 1.0).abs() < 1e-12);
    }
}
