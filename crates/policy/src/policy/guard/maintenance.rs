//! Times of the week, by people's clocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;

/// A time of the week that comes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenWindow", into = "WrittenWindow")]
pub struct MaintenanceWindow {
    written: WrittenWindow,
    zone: TimeZone,
}

/// The same, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenWindow {
    /// By which rules name it.
    pub name: Arc<str>,
    /// The days on which it begins, Monday 1 to Sunday 7; none: every day.
    pub days: BTreeSet<i8>,
    /// When it begins, in minutes since midnight.
    pub from: u16,
    /// When it ends, in minutes since midnight; where that is not after `from`, on the next day.
    pub to: u16,
    /// An IANA time zone.
    pub time_zone: String,
}

impl TryFrom<WrittenWindow> for MaintenanceWindow {
    type Error = String;

    fn try_from(written: WrittenWindow) -> Result<Self, String> {
        if written.from >= DAY_MINUTES || written.to > DAY_MINUTES {
            return Err("a day ends at 24:00".to_owned());
        }
        let zone = time_zone(&written.time_zone)?;
        Ok(Self { written, zone })
    }
}

impl From<MaintenanceWindow> for WrittenWindow {
    fn from(window: MaintenanceWindow) -> Self {
        window.written
    }
}

/// A time zone from the data inside the program: it is the same on every machine.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    TimeZoneDatabase::bundled().get(name).map_err(|_| {
        format!("\"{name}\" is no IANA time zone; they are named like Europe/Berlin, and UTC")
    })
}

impl MaintenanceWindow {
    /// By which rules name it.
    pub fn name(&self) -> &Arc<str> {
        &self.written.name
    }

    /// Whether it is open then. A beginning or an end that the clocks skip is as much later as they
    /// skip; of one that comes twice, the first counts.
    pub fn is_open(&self, at: Timestamp) -> bool {
        let today = at.to_zoned(self.zone.clone()).date();
        let yesterday = today.checked_sub(1.day());
        let days = yesterday.into_iter().chain([today]);
        days.filter(|day| self.begins_on(day.weekday()))
            .any(|day| self.span(day).is_some_and(|(begins, ends)| begins <= at && at < ends))
    }

    fn begins_on(&self, day: Weekday) -> bool {
        let days = &self.written.days;
        days.is_empty() || days.contains(&day.to_monday_one_offset())
    }

    fn span(&self, day: Date) -> Option<(Timestamp, Timestamp)> {
        let (from, to) = (self.written.from, self.written.to);
        let last =
            if to <= from || to == DAY_MINUTES { day.checked_add(1.day()).ok()? } else { day };
        Some((self.instant(day, from)?, self.instant(last, to % DAY_MINUTES)?))
    }

    fn instant(&self, day: Date, minutes: u16) -> Option<Timestamp> {
        let (hour, minute) = (i8::try_from(minutes / 60).ok()?, i8::try_from(minutes % 60).ok()?);
        let time = Time::new(hour, minute, 0, 0).ok()?;
        let wall = self.zone.to_ambiguous_timestamp(day.to_datetime(time));
        wall.compatible().ok()
    }
}
