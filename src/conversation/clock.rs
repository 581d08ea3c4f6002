//! The instant of an agent's timestamp. OpenHands writes the naive local time of the writing process, which
//! may run in another zone (a container); the file's modification time tells which.

use chrono::{DateTime, Local, NaiveDateTime, TimeDelta, TimeZone, Utc};

/// Offsets from UTC in minutes that are in use and no whole hours.
const ODD_OFFSETS: [i64; 12] = [-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765];

/// How far a file's modification time may lie from the event that it holds, in seconds.
const NEAR: i64 = 120;

/// The instant that `stamp` names: as it says where it has a zone, else in the zone in which it is near
/// `mtime`, else in this machine's.
pub(super) fn instant(stamp: &str, mtime: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
    if let Ok(zoned) = DateTime::parse_from_rfc3339(stamp) {
        return Some(zoned.with_timezone(&Utc));
    }
    let naive = NaiveDateTime::parse_from_str(stamp, "%Y-%m-%dT%H:%M:%S%.f")
        .or_else(|_| NaiveDateTime::parse_from_str(stamp, "%Y-%m-%d %H:%M:%S%.f"))
        .ok()?;
    if let Some(offset) = mtime.and_then(|m| offset(naive, m)) {
        return naive.checked_sub_signed(offset).map(|n| n.and_utc());
    }
    Local
        .from_local_datetime(&naive)
        .earliest()
        .map(|t| t.with_timezone(&Utc))
        .or_else(|| Some(naive.and_utc()))
}

/// The offset from UTC in which `naive` is near `mtime`, if there is such a zone.
fn offset(naive: NaiveDateTime, mtime: DateTime<Utc>) -> Option<TimeDelta> {
    let apart = naive.signed_duration_since(mtime.naive_utc()).num_seconds();
    let quarters = (apart + 450).div_euclid(900);
    let minutes = quarters * 15;
    let known = (-720..=840).contains(&minutes) && (minutes % 60 == 0 || ODD_OFFSETS.contains(&minutes));
    ((apart - quarters * 900).abs() < NEAR && known).then(|| TimeDelta::minutes(minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(s)
            .expect("valid")
            .with_timezone(&Utc)
    }

    #[test]
    fn the_zone_comes_from_the_file() {
        let mtime = Some(at("2026-11-29T17:05:34Z"));
        for naive in [
            "2026-11-29T14:05:33.659338",
            "2026-11-29T17:05:33.659338",
            "2026-11-29T22:35:33.659338",
        ] {
            assert_eq!(
                instant(naive, mtime),
                Some(at("2026-11-29T17:05:33.659338Z")),
                "{naive}"
            );
        }
    }

    #[test]
    fn a_copied_file_says_nothing_of_the_zone() {
        let here = Local
            .with_ymd_and_hms(2026, 11, 29, 14, 5, 33)
            .earliest()
            .map(|t| t.with_timezone(&Utc));
        // 5:15 is no offset that any zone has
        assert_eq!(
            instant("2026-11-29T14:05:33", Some(at("2026-11-29T19:20:33Z"))),
            here
        );
        assert_eq!(
            instant("2026-11-29T14:05:33", Some(at("2027-03-01T00:00:00Z"))),
            here
        );
        assert_eq!(instant("2026-11-29T14:05:33", None), here);
    }

    #[test]
    fn zoned_and_odd_stamps() {
        assert_eq!(
            instant("2026-11-29T14:05:33+02:00", None),
            Some(at("2026-11-29T12:05:33Z"))
        );
        assert_eq!(
            instant("2026-11-29T12:05:33Z", None),
            Some(at("2026-11-29T12:05:33Z"))
        );
        assert_eq!(instant("yesterday", None), None);
        assert_eq!(instant("", None), None);
    }
}
