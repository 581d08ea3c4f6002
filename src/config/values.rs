//! Values that are written as text: ages and sizes.

use chrono::TimeDelta;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// An age: `30d`, `12h`, `45m`, `90s`.
pub fn age(text: &str) -> Option<TimeDelta> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let n: i64 = number.parse().ok().filter(|n| *n >= 0)?;
    match unit {
        "d" => TimeDelta::try_days(n),
        "h" => TimeDelta::try_hours(n),
        "m" => TimeDelta::try_minutes(n),
        "s" => TimeDelta::try_seconds(n),
        _ => None,
    }
}

/// A size: `20G`, `500M`, `1048576`. Powers of 1024.
pub fn bytes(text: &str) -> Option<u64> {
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .or_else(|| upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (digits, shift) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 10),
        Some('M') => (&upper[..upper.len() - 1], 20),
        Some('G') => (&upper[..upper.len() - 1], 30),
        Some('T') => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// An age in a config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age(pub TimeDelta);

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let wrong = || D::Error::custom(format!("{text:?} is no age: for example \"30d\" or \"12h\""));
        age(&text).map(Self).ok_or_else(wrong)
    }
}

/// A size in a config file: a number of bytes or a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size, for example \"20G\"")]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(d)? {
            Either::Number(n) => Ok(Self(n)),
            Either::Text(text) => bytes(&text)
                .map(Self)
                .ok_or_else(|| D::Error::custom(format!("{text:?} is no size: for example \"20G\""))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes() {
        assert_eq!(age("30d"), Some(TimeDelta::days(30)));
        assert_eq!(age("45m"), Some(TimeDelta::minutes(45)));
        for wrong in ["soon", "", "d", "-1d", "9999999999999999999d", "1é"] {
            assert_eq!(age(wrong), None, "{wrong}");
        }
        assert_eq!(
            (bytes("2G"), bytes("512 KiB"), bytes("7")),
            (Some(2 << 30), Some(512 << 10), Some(7))
        );
        for wrong in ["", "G", "much", "99999999999T", "-1"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
