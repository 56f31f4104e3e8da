//! Random guard rails of a configuration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{Grade, Grades};
use umawarden::policy::guard::{
    AtMost, BreakerLimit, Glob, GuardRails, MaintenanceWindow, Protected, WrittenWindow,
};

use super::chance::Chance;

/// Windows that rules may name.
pub const WINDOWS: [&str; 2] = ["night", "odd"];

/// As a person would write them, in time spans that fit the beat.
pub fn random(chance: &mut Chance, beat: Duration) -> GuardRails {
    let often = |chance: &mut Chance| beat * *chance.one_of(&[20, 100, 500]);
    let budget = chance
        .once_in(2)
        .then(|| AtMost { times: *chance.one_of(&[1, 2, 3, 5]), per: often(chance) });
    let breaker = chance.once_in(2).then(|| BreakerLimit {
        misses: *chance.one_of(&[0, 1, 2, 3]),
        reset_after: (!chance.once_in(3)).then(|| often(chance)),
    });
    let never_in = if chance.once_in(6) { vec![Arc::from("night")] } else { Vec::new() };
    GuardRails {
        budget,
        breaker,
        maintenance_windows: WINDOWS.map(|name| window(chance, name)).to_vec(),
        never_in,
        protect: protect(chance),
        enforced: grades(chance),
        ..GuardRails::default()
    }
}

/// All grades, or some.
fn grades(chance: &mut Chance) -> Grades {
    if !chance.once_in(3) {
        return Grades::default();
    }
    Grade::ALL.into_iter().filter(|_| !chance.once_in(3)).collect()
}

fn protect(chance: &mut Chance) -> Protected {
    let glob = |text: &str| Glob::try_from(text.to_owned()).unwrap();
    let units = match chance.whole(0..=3) {
        0 => vec![glob("database.service")],
        1 => vec![glob("*.service")],
        _ => Vec::new(),
    };
    let processes = if chance.once_in(6) { vec![glob("postgres")] } else { Vec::new() };
    Protected { units, processes, ..Protected::default() }
}

fn window(chance: &mut Chance, name: &str) -> MaintenanceWindow {
    let days: BTreeSet<i8> = (1..=7).filter(|_| chance.once_in(3)).collect();
    let minute = |chance: &mut Chance| chance.whole(0..=24 * 60 - 1) as u16;
    let written = WrittenWindow {
        name: Arc::from(name),
        days,
        from: minute(chance),
        to: minute(chance),
        time_zone: (*chance.one_of(&["UTC", "Asia/Kolkata", "America/St_Johns"])).to_owned(),
    };
    MaintenanceWindow::try_from(written).unwrap()
}
