//! The engines that the daemon watches: whether each is proven to be what it claims.

use super::{EngineFacts, Facts, Finding, Verdict, known};

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let engines = match known("identity", &facts.engines, "no daemon watches engines") {
        Err(finding) => return vec![*finding],
        Ok(engines) => engines,
    };
    let mut findings: Vec<Finding> = engines.iter().flat_map(of_engine).collect();
    if findings.is_empty() {
        let says = "no key is withheld, and every container that an engine is in is confirmed";
        findings.push(Finding::ok("identity", says));
    }
    findings
}

fn of_engine(engine: &EngineFacts) -> impl Iterator<Item = Finding> {
    let subject = format!("engine {}", engine.name);
    let key = engine.key_withheld.as_ref().map(|why| {
        let says = format!("it is queried without its key: {why}");
        Finding::new("identity", Verdict::Warning, says).of(&subject).fix(
            "if it is yours: in its entry under engines write user: with the user that it runs as, \
             or run it as a service of the system, or in a container that path.docker_socket or \
             path.cri_socket knows",
        )
    });
    let container = engine.claimed_container.as_ref().map(|id| {
        let says = format!(
            "its control group names container {id:.12}, and neither Docker nor a CRI confirms \
             that it is in there: nothing is asked of that container, and its name and labels are \
             not known"
        );
        Finding::new("identity", Verdict::Warning, says).of(&subject).fix(
            "let path.docker_socket or path.cri_socket be the socket of that container's runtime",
        )
    });
    key.into_iter().chain(container)
}
