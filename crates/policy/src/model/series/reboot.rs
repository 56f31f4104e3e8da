//! Reboots of last resort.

use super::super::{RebootResult, RebootStage, Source};
use super::Metric;

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_scheduled_timestamp_seconds",
        &[],
        "Due time of the scheduled reboot, in seconds since 1970; missing if none is scheduled.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_stage",
        &["stage"],
        "1 for the stage of a reboot: none, announcing, scheduled (anyone can cancel it), waiting \
         (due, but blocked), warning (logged-in users have some time). Then taking_slot, draining \
         (engines are being stopped), performing, handed_over (accepted, and the machine is still \
         up).",
    )
    .closed(&[("stage", &RebootStage::NAMES)])
    .flag()
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_reboots_total",
        &["result"],
        "Reboots by umawarden, as assessed afterwards: helped, did_not_help, unknown (counts as \
         not helped), not_rebooted (accepted, but nothing happened), called_off (after it was \
         handed over).",
    )
    .closed(&[("result", &RebootResult::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_reboots_not_helped_in_a_row",
        &[],
        "Last reboots in a row that did not help or are not assessed yet. After two, no rule \
         reboots until umawarden reboot --clear.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_budget_left",
        &[],
        "Reboots that reboot.at_most still allows now, by its tightest limit.",
    ),
];
