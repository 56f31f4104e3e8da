//! The node itself: memory, kernel, driver, settings, and what this program may do here.

use super::{Facts, Finding, Verdict, faults, known};
use crate::model::{EventKind, KernelEvent, Recovery, bytes_text, counted};

/// Since this kernel cachestat(2) tells what is cached of a file.
const CACHESTAT: (u32, u32) = (6, 5);
/// Since this one control groups have `memory.reclaim`.
const RECLAIM: (u32, u32) = (5, 19);
/// Since this one a hung task's report names who holds its lock.
const LOCK_OWNER: (u32, u32) = (6, 17);

/// Xids after which the device is gone until somebody acts.
const DEVICE_DEAD: [u32; 4] = [79, 119, 120, 143];
/// On GB10: the module's flavour is the wrong one.
const WRONG_FLAVOUR: u32 = 169;

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings =
        vec![swap(facts), settings(facts), pressure(facts), kernel(facts), daemon(facts)];
    findings.extend(driver(facts));
    findings.extend(["kernel", "driver"].into_iter().flat_map(|of| faults::found(facts, of)));
    findings.extend(kernel_log(facts));
    findings.extend(lacks(facts));
    findings
}

fn swap(facts: &Facts) -> Finding {
    let check = "swap";
    match known(check, &facts.memory, "") {
        Err(finding) => *finding,
        Ok((_, 0)) => Finding::ok(check, "there is none: when memory is short, it shows"),
        Ok((_, swap)) => Finding::new(
            check,
            Verdict::Warning,
            format!(
                "{} of swap hide that memory runs out: the driver's memory cannot be swapped, so \
                 that everything else is, and a rank that swaps while it loads keeps the others \
                 waiting until they give up",
                bytes_text(*swap)
            ),
        )
        .fix("sudo swapoff -a, and take it out of /etc/fstab"),
    }
}

fn settings(facts: &Facts) -> Finding {
    let check = "settings";
    let (profile, misfits) = match known(check, &facts.settings, "no profile is for this node") {
        Err(finding) => return *finding,
        Ok(settings) => settings,
    };
    if misfits.is_empty() {
        return Finding::ok(check, format!("the kernel's settings fit profile {profile}"));
    }
    let named =
        misfits.iter().map(|one| format!("{} is {}, not {}", one.name, one.now, one.wanted));
    let named = named.collect::<Vec<_>>().join("; ");
    let says = format!("not as profile {profile} wants them: {named}");
    Finding::new(check, Verdict::Warning, says)
        .fix("`umawarden tune` says why; sudo umawarden tune --apply --persist")
}

fn pressure(facts: &Facts) -> Finding {
    let check = "pressure";
    match known(check, &facts.has_pressure, "") {
        Err(finding) => *finding,
        Ok(true) => Finding::ok(check, "the kernel tells memory pressure (PSI)"),
        Ok(false) => Finding::new(
            check,
            Verdict::Warning,
            "the kernel does not tell memory pressure (PSI): rules that ask for it stay unknown, \
             and a collapse is seen later",
        )
        .fix("boot with psi=1"),
    }
}

/// The first two numbers of a release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(facts: &Facts) -> Finding {
    let check = "kernel";
    let text = match known(check, &facts.kernel, "") {
        Err(finding) => return *finding,
        Ok(text) => text,
    };
    let Some(version) = release(text) else {
        let says = format!("{text} is no release that is understood");
        return Finding::new(check, Verdict::CannotTell, says);
    };
    let lacks = [
        (RECLAIM, "memory.reclaim, which the action reclaim writes to (5.19)"),
        (CACHESTAT, "cachestat(2), by which evict_checkpoint sees what is cached (6.5)"),
    ];
    let lacking: Vec<&str> =
        lacks.iter().filter(|(since, _)| version < *since).map(|(_, what)| *what).collect();
    if lacking.is_empty() {
        let more = if version < LOCK_OWNER {
            "; from 6.17 on a hung task's report would name who holds its lock"
        } else {
            ""
        };
        return Finding::ok(check, format!("{text} has what actions need{more}"));
    }
    let says = format!("{text} lacks {}", lacking.join(", and "));
    Finding::new(check, Verdict::Warning, says).fix("a newer kernel of the distribution")
}

fn driver(facts: &Facts) -> Option<Finding> {
    let check = "driver";
    let text = match known(check, &facts.driver, "no NVIDIA driver is loaded here") {
        Err(finding) => return Some(*finding),
        Ok(text) => text,
    };
    let Some(version) = faults::driver(text) else {
        let says = "its version is not understood";
        return Some(Finding::new(check, Verdict::CannotTell, says));
    };
    let says = format!("no fault is known of driver {}", version.text);
    faults::found(facts, check).is_empty().then(|| Finding::ok(check, says))
}

fn daemon(facts: &Facts) -> Finding {
    let check = "daemon";
    match known(check, &facts.has_daemon, "") {
        Err(finding) => *finding,
        Ok(true) => Finding::ok(check, "umawarden runs, and answers"),
        Ok(false) => Finding::new(
            check,
            Verdict::Warning,
            "no daemon of umawarden answers here: nobody watches, guards, or keeps what happens",
        )
        .fix("`umawarden print systemd-unit` prints its unit; or name its --storage.path"),
    }
}

fn kernel_log(facts: &Facts) -> Vec<Finding> {
    let check = "kernel_log";
    let events = match known(check, &facts.kernel_log, "") {
        Err(mut finding) => {
            finding.verdict = Verdict::Problem;
            finding.says = format!(
                "the kernel log cannot be read: {}; rules about its events are unknown, and \
                 MemoryCollapse goes by its other signs",
                finding.says
            );
            let fix = "run as root, or with CAP_SYSLOG; in a container with --device /dev/kmsg";
            return vec![finding.fix(fix)];
        }
        Ok(events) => events,
    };
    let mut findings = Vec::new();
    let reboot = "sudo systemctl reboot; where that hangs: echo s, u, b > /proc/sysrq-trigger";
    for event in events {
        let found = match &event.kind {
            EventKind::Kernel(KernelEvent::UvmFatal) => {
                Some(("the UVM driver has given up until the next boot".to_owned(), reboot))
            }
            EventKind::Kernel(KernelEvent::Xid {
                recovery: Some(Recovery::NodeReboot), ..
            }) => Some((
                "the driver says that this node must be rebooted (Xid 154)".to_owned(),
                reboot,
            )),
            EventKind::Kernel(KernelEvent::Xid { xid: WRONG_FLAVOUR, .. }) => Some((
                "Xid 169: on GB10 the driver's modules are of the wrong flavour".to_owned(),
                "install the flavour of the kernel modules that this machine's vendor ships",
            )),
            EventKind::Kernel(KernelEvent::Xid { xid, .. }) if DEVICE_DEAD.contains(xid) => {
                Some((format!("Xid {xid}: the GPU does not answer any more"), reboot))
            }
            _ => None,
        };
        let Some((says, fix)) = found else { continue };
        if !findings.iter().any(|told: &Finding| told.says == says) {
            findings.push(Finding::new(check, Verdict::Problem, says).fix(fix));
        }
    }
    if findings.is_empty() {
        let told = counted(events.len() as u64, "event");
        let says = format!("it can be read; {told} of this boot, none that needs a reboot");
        findings.push(Finding::ok(check, says));
    }
    findings
}

fn lacks(facts: &Facts) -> Vec<Finding> {
    let check = "permissions";
    let lacks = match known(check, &facts.lacks, "") {
        Err(finding) => return vec![*finding],
        Ok(lacks) => lacks,
    };
    if lacks.is_empty() {
        let says = "all that the rules ask for can be done by this user";
        return vec![Finding::ok(check, says)];
    }
    let finding = |lack: &super::Lack| {
        let verdict = if lack.is_wanted_now { Verdict::Problem } else { Verdict::Warning };
        let when = if lack.is_wanted_now { "" } else { " (wanted once the mode is enforce)" };
        Finding::new(check, verdict, format!("{}{when}", lack.what)).fix(lack.remedy.clone())
    };
    lacks.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Known;
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_kernel_says() {
        assert_eq!(release("6.17.0-1004-nvidia"), Some((6, 17)));
        assert_eq!(release("6"), None);
        assert_eq!(release("x.y"), None);
    }

    #[test]
    fn a_fact_that_is_not_known_is_no_health() {
        let finding = known::<()>("x", &Known::Not("no permission".to_owned()), "").unwrap_err();
        assert_eq!(finding.verdict, Verdict::CannotTell);
        assert_eq!(finding.says, "no permission");
    }
}
