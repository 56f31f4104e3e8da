//! Operators on two numbers.

use super::super::syntax::BinaryOp;

/// The value of an arithmetic operator.
pub(crate) fn arithmetic(op: BinaryOp, left: f64, right: f64) -> f64 {
    match op {
        BinaryOp::Add => left + right,
        BinaryOp::Subtract => left - right,
        BinaryOp::Multiply => left * right,
        BinaryOp::Divide => left / right,
        BinaryOp::Remainder => left % right,
        BinaryOp::Power => power(left, right),
        BinaryOp::Atan2 => left.atan2(right),
        _ => f64::NAN,
    }
}

/// Whether a comparison holds.
pub(crate) fn compares(op: BinaryOp, left: f64, right: f64) -> bool {
    match op {
        BinaryOp::Equal => left == right,
        BinaryOp::NotEqual => left != right,
        BinaryOp::Less => left < right,
        BinaryOp::LessOrEqual => left <= right,
        BinaryOp::Greater => left > right,
        BinaryOp::GreaterOrEqual => left >= right,
        _ => false,
    }
}

/// The value of an operator, which of a comparison is 0 or 1.
pub(crate) fn scalars(op: BinaryOp, left: f64, right: f64) -> f64 {
    match op.is_comparison() {
        true => f64::from(u8::from(compares(op, left, right))),
        false => arithmetic(op, left, right),
    }
}

/// `x ^ y` by repeated squaring, as Go's `math.Pow` does it: its last digit differs from C's.
fn power(x: f64, y: f64) -> f64 {
    let is_ordinary = x.is_finite() && y.is_finite() && x != 0.0 && x != 1.0 && y.abs() < 9e15;
    if y == 0.5 && x.is_finite() && x != 0.0 {
        return x.sqrt();
    }
    if y == -0.5 && x.is_finite() && x != 0.0 {
        return 1.0 / x.sqrt();
    }
    if !is_ordinary || y == 0.0 || y == 1.0 || (y.fract() != 0.0 && x < 0.0) {
        return x.powf(y);
    }
    let mut whole = y.abs().trunc();
    let mut fraction = y.abs().fract();
    let mut mantissa = 1.0;
    let mut exponent: i64 = 0;
    if fraction != 0.0 {
        if fraction > 0.5 {
            fraction -= 1.0;
            whole += 1.0;
        }
        mantissa = (fraction * x.ln()).exp();
    }
    let (mut base, mut base_exponent) = split(x);
    let mut bits = whole as i64;
    while bits != 0 {
        if base_exponent.abs() > 1 << 12 {
            exponent += base_exponent;
            break;
        }
        if bits & 1 == 1 {
            mantissa *= base;
            exponent += base_exponent;
        }
        base *= base;
        base_exponent <<= 1;
        if base < 0.5 {
            base += base;
            base_exponent -= 1;
        }
        bits >>= 1;
    }
    if y < 0.0 {
        mantissa = 1.0 / mantissa;
        exponent = -exponent;
    }
    scaled(mantissa, exponent)
}

/// A mantissa within [0.5, 1) and a power of two.
fn split(x: f64) -> (f64, i64) {
    const TO_NORMAL: f64 = (1_u64 << 52) as f64;
    let (x, shift) = if x.is_subnormal() { (x * TO_NORMAL, -52) } else { (x, 0) };
    let bits = x.to_bits();
    let exponent = i64::from(((bits >> 52) & 0x7ff) as u16) - 1022;
    (f64::from_bits(bits & !(0x7ff << 52) | (1022 << 52)), exponent + shift)
}

/// `mantissa * 2^exponent`, rounded once.
fn scaled(mantissa: f64, exponent: i64) -> f64 {
    let (mantissa, extra) = split(mantissa);
    let exponent = exponent + extra;
    if exponent > 1024 {
        return f64::INFINITY.copysign(mantissa);
    }
    if exponent < -1080 {
        return 0.0_f64.copysign(mantissa);
    }
    let of_two = |power: i64| f64::from_bits(((power + 1023) as u64) << 52);
    if exponent >= -1021 {
        return mantissa * 2.0 * of_two(exponent - 1);
    }
    mantissa * of_two(exponent + 1000) * of_two(-1000)
}
