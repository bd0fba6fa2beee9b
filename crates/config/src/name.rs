// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names that an operator gives.

use tidegate_model::NAME_MAX;

/// What is wrong with a name of a service or class, if anything.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let starts = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let good = starts && name.chars().all(allowed) && name.len() <= NAME_MAX;
    let say = format!(
        "a name has 1 to {NAME_MAX} letters, digits, - or _, and begins with a letter or digit"
    );
    (!good).then_some(say)
}
