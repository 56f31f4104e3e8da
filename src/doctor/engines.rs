//! The engines that the daemon watches: whether their identity is proven.

use super::{DoctorFacts, EngineFacts, Finding, Severity, known};

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let engines = match known("identity", &facts.engines, "no daemon watches engines") {
        Err(finding) => return vec![*finding],
        Ok(engines) => engines,
    };
    let mut findings: Vec<Finding> = engines.iter().flat_map(of_engine).collect();
    if findings.is_empty() {
        let text = "no key is withheld, and the container of every engine is confirmed";
        findings.push(Finding::ok("identity", text));
    }
    findings
}

fn of_engine(engine: &EngineFacts) -> impl Iterator<Item = Finding> {
    let subject = format!("engine {}", engine.name);
    let key = engine.key_withheld.as_ref().map(|why| {
        let text = format!("queried without its key: {why}");
        Finding::new("identity", Severity::Warning, text).of(&subject).fix(
            "if the engine is yours: set user: in its entry under engines to the user that it runs \
             as, or run it as a system service, or in a container that path.docker_socket or \
             path.cri_socket knows",
        )
    });
    let container = container(engine)
        .map(|(text, fix)| Finding::new("identity", Severity::Warning, text).of(&subject).fix(fix));
    key.into_iter().chain(container)
}

/// What is unknown of its container, and the fix.
fn container(engine: &EngineFacts) -> Option<(String, &'static str)> {
    if let Some(why) = &engine.container_runtime_error {
        let text = format!(
            "its user's own Docker or Podman cannot be queried ({why}): the name and the labels \
             of its container are unknown"
        );
        let fix = "if it is in a container: give the daemon `umawarden print drop-in rootless`, \
                   and have the user run `systemctl --user enable --now podman.socket` for Podman";
        return Some((text, fix));
    }
    let id = engine.claimed_container.as_ref()?;
    let text = format!(
        "its control group names container {id:.12}, which neither Docker nor a CRI confirms: the \
         container is not queried, and its name and labels are unknown"
    );
    let fix = "set path.docker_socket or path.cri_socket to the socket of that container's \
               runtime; if a user runs it (rootless), have the user run `systemctl --user enable \
               --now podman.socket`, and give the daemon `umawarden print drop-in rootless`";
    Some((text, fix))
}
