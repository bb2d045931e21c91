//! Dates for chat templates: the directives of C's `strftime` that templates use, in UTC and English.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time; unknown directives stay as they are written.
pub(super) fn strftime(now: SystemTime, format: &str) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = ((days + 4) % 7) as usize;
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            text.push(char);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let two = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        match directive {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &two(year % 100),
            Some('m') => text += &two(month),
            Some('d') => text += &two(day),
            Some('e') => text += &format!("{day:2}"),
            Some('B') => text += MONTHS[month as usize - 1],
            Some('b' | 'h') => text += &MONTHS[month as usize - 1][..3],
            Some('A') => text += DAYS[weekday],
            Some('a') => text += &DAYS[weekday][..3],
            Some('H') => text += &two(hour),
            Some('I') => text += &two((hour + 11) % 12 + 1),
            Some('M') => text += &two(minute),
            Some('S') => text += &two(second),
            Some('p') => text += if hour < 12 { "AM" } else { "PM" },
            Some('F') => text += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => text += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => text += "UTC",
            Some('z') => text += "+0000",
            Some('%') => text.push('%'),
            Some(other) => text.extend(['%', other]),
            None => text.push('%'),
        }
    }
    text
}

/// Year, month and day of the n-th day since 1970 (H. Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let leap = UNIX_EPOCH + Duration::from_secs(1_709_210_096);
        assert_eq!(strftime(leap, "%d %b %Y %H:%M:%S %A %j"), "29 Feb 2024 12:34:56 Thursday %j");
        assert_eq!(strftime(UNIX_EPOCH, "%-d %B %y, %I %p, %F%%"), "1 January 70, 12 AM, 1970-01-01%");
    }
}
