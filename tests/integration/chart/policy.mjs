// Evaluates a ValidatingAdmissionPolicy as an API server does. The input is JSON: the `spec` of the
// policy, and `requests`, each with the variables of its expressions. The output is a list: of each
// request "not matched", "allowed", or the messages of what refuses it.
//
//   node policy.mjs NODE_MODULES <INPUT

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";

const [modules] = process.argv.slice(2);
const { Environment } = await import(
  join(resolve(modules), "@marcbachmann", "cel-js", "lib", "index.js")
);
const { spec, requests } = JSON.parse(readFileSync(0, "utf8"));

const environment = new Environment({ enableOptionalTypes: true });
for (const name of ["request", "object", "oldObject", "variables"]) {
  environment.registerVariable(name, "dyn");
}

const isMatched = ({ operation, resource, subResource }) => {
  const named = subResource ? `${resource.resource}/${subResource}` : resource.resource;
  return spec.matchConstraints.resourceRules.some((rule) =>
    rule.apiGroups.includes(resource.group) && rule.apiVersions.includes(resource.version) &&
    rule.operations.includes(operation) && rule.resources.includes(named));
};

function judged(context) {
  const evaluate = (expression) => environment.evaluate(expression, context);
  if (!isMatched(context.request)) return "not matched";
  if (!spec.matchConditions.every(({ expression }) => evaluate(expression))) return "not matched";
  context.variables = {};
  for (const { name, expression } of spec.variables) {
    // An API server evaluates a variable where it is used, and fails there.
    try {
      context.variables[name] = evaluate(expression);
    } catch { /* It stays unknown. */ }
  }
  const refusals = spec.validations.map(({ expression, message, messageExpression }) => {
    try {
      return evaluate(expression) === true ? null : message ?? evaluate(messageExpression);
    } catch (error) {
      // failurePolicy: Fail
      return `error: ${error.message.split("\n")[0]}`;
    }
  });
  return refusals.find((refusal) => refusal !== null) ?? "allowed";
}

for (const { expression } of [...spec.matchConditions, ...spec.variables, ...spec.validations]) {
  const { valid, error } = environment.check(expression);
  if (!valid) throw error;
}
console.log(JSON.stringify(requests.map(judged)));
