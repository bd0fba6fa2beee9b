// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of CPUs: `0-1,4`.

use std::fmt;
use std::str::FromStr;

/// Highest CPU number in a list.
const CPU_MAX: u16 = 4095;

/// A set of CPUs: sorted numbers, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<u16>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |t: &str| {
                let n = t.trim().parse::<u16>().map_err(|_| format!("{t:?} is no CPU number"))?;
                if n > CPU_MAX { Err(format!("CPU {n} is above {CPU_MAX}")) } else { Ok(n) }
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("the range {part:?} runs backwards"));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (i, run) in runs.enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

crate::written_as_text!(CpuList, "cpus");
