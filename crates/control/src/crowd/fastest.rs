// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The aggregate response rate of high-bandwidth connections (section 3.1).

/// The mean rate of the fastest connections: of `floor(share·n + 1)` of n, as the authors' code has it.
/// The text says 5 %, the code 10 % and at least one. None of none. Reorders `rates`.
#[must_use]
pub fn fastest(rates: &mut [f64], share: f64) -> Option<f64> {
    let all = rates.len();
    if all == 0 {
        return None;
    }
    let wanted = (share.clamp(0.0, 1.0) * all as f64 + 1.0) as usize;
    let wanted = wanted.clamp(1, all);
    rates.select_nth_unstable_by(wanted - 1, |a, b| b.total_cmp(a));
    Some(rates[..wanted].iter().sum::<f64>() / wanted as f64)
}

#[cfg(test)]
mod tests {
    use super::fastest;

    #[test]
    fn it_is_the_mean_of_the_fastest_tenth_and_one() {
        let mut rates: Vec<f64> = (1..=100).map(f64::from).collect();
        // floor(0.1·100 + 1) = 11 of them: 90 … 100
        assert_eq!(fastest(&mut rates, 0.1), Some(95.0));
        let mut rates = [5.0, 1.0, 9.0];
        assert_eq!(fastest(&mut rates, 0.1), Some(9.0), "one at least");
        assert_eq!(fastest(&mut rates, 1.0), Some(5.0), "and no more than there are");
        assert_eq!(fastest(&mut rates, f64::NAN), Some(9.0));
        assert_eq!(fastest(&mut [], 0.1), None);
    }

    /// What the method hides (spec/news.md): refusing changes n, and with it who is among the fastest.
    #[test]
    fn fewer_connections_are_a_higher_rate() {
        let rates = |n: u32| (1..=n).map(|i| f64::from(i % 40)).collect::<Vec<_>>();
        let (many, few) = (fastest(&mut rates(400), 0.1), fastest(&mut rates(20), 0.1));
        assert_ne!(many, few);
    }
}
