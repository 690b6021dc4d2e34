// Figures as people read them. What is not known is a dash, which is not zero.

export const UNKNOWN = "–";

const MIB = 2 ** 20;
const GIB = 2 ** 30;

const known = (value) => value !== null && value !== undefined;
const shown = (value, text) => (known(value) ? text(value) : UNKNOWN);

/** The sum of what is known; null where nothing is. */
export function sumKnown(values) {
  const found = values.filter(known);
  return found.length ? found.reduce((sum, value) => sum + value, 0) : null;
}

export const size = (bytes) =>
  shown(bytes, (value) =>
    Math.abs(value) >= GIB ? `${(value / GIB).toFixed(1)} GiB` : `${(value / MIB).toFixed(0)} MiB`,
  );

export const percent = (ratio) => shown(ratio, (value) => `${(value * 100).toFixed(0)} %`);

export const watts = (power) => shown(power, (value) => `${value.toFixed(0)} W`);

export const celsius = (temperature) => shown(temperature, (value) => `${value.toFixed(0)} °C`);

export const joules = (millijoules) =>
  shown(millijoules, (value) => {
    const energy = value / 1000;
    for (const [unit, length] of [["GJ", 1e9], ["MJ", 1e6], ["kJ", 1e3]]) {
      if (energy >= length) return `${(energy / length).toFixed(energy >= 100 * length ? 0 : 1)} ${unit}`;
    }
    return `${energy.toFixed(0)} J`;
  });

export const kilowattHours = (millijoules) => `${(millijoules / 3.6e9).toPrecision(3)} kWh`;

/** A span of time in its largest unit. */
export const span = (seconds) =>
  shown(seconds, (value) => {
    for (const [unit, length] of [["d", 86_400], ["h", 3_600], ["m", 60]]) {
      if (value >= 2 * length) return `${(value / length).toFixed(0)} ${unit}`;
    }
    return `${value.toFixed(0)} s`;
  });

/** Of several GPUs the spans are summed, and are GPU time: "3 GPU-h". */
export const gpuSpan = (seconds, gpus) => (seconds && gpus > 1 ? span(seconds).replace(" ", " GPU-") : span(seconds));

export const money = (amount, currency) =>
  shown(amount, (value) => `${value.toFixed(value === 0 || value >= 1 ? 2 : 4)} ${currency}`);

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const calendar = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
});

/** Unix seconds as a time of today, or with its day. */
export const timeOfDay = (seconds) => clock.format(seconds * 1000);
export const moment = (seconds) => calendar.format(seconds * 1000);

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
