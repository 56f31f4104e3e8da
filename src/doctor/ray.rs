//! Ray's memory monitor, which kills workers of engines. It counts page cache as used memory.

use super::{DoctorFacts, Finding, Severity, known};

/// The share of memory in use at which it kills by default.
const DEFAULT_THRESHOLD: f64 = 0.95;

/// A `raylet`, which has the memory monitor of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raylet {
    /// Its process.
    pub pid: u32,
    /// Its variables, or why they could not be read.
    pub variables: Result<RayVariables, String>,
}

/// Variables of a raylet's environment, where they are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RayVariables {
    /// `RAY_memory_usage_threshold`: a share of the node's memory.
    pub threshold: Option<String>,
    /// `RAY_memory_monitor_refresh_ms`; 0 turns the monitor off.
    pub refresh_ms: Option<String>,
}

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    match known("ray", &facts.raylets, "no Ray runs") {
        Err(finding) => vec![*finding],
        Ok(raylets) if raylets.is_empty() => vec![Finding::ok("ray", "no Ray runs")],
        Ok(raylets) => raylets.iter().map(of_raylet).collect(),
    }
}

fn of_raylet(raylet: &Raylet) -> Finding {
    let finding = match &raylet.variables {
        Err(why) => Finding::new("ray", Severity::Unknown, why),
        Ok(variables) if variables.refresh_ms.as_deref() == Some("0") => {
            Finding::ok("ray", "its memory monitor is off")
        }
        Ok(RayVariables { threshold, .. }) => {
            let share = threshold.as_deref().and_then(|text| text.trim().parse::<f64>().ok());
            let share = share.unwrap_or(DEFAULT_THRESHOLD);
            let text = format!(
                "its memory monitor kills a worker when {:.0} % of the node's memory are in use, \
                 page cache included",
                share * 100.0
            );
            if share > DEFAULT_THRESHOLD {
                Finding::ok("ray", text)
            } else {
                let text = format!("{text}: a load of weights reaches that");
                Finding::new("ray", Severity::Warning, text).fix(
                    "set RAY_memory_usage_threshold=0.99, or RAY_memory_monitor_refresh_ms=0 to \
                     turn it off, for `ray start` on this node",
                )
            }
        }
    };
    finding.of(&format!("raylet (pid {})", raylet.pid))
}
