// Judges of formats, written from the standards and apart from the server's patterns.
import net from "node:net";

const ATOM = "[\\w!#$%&'*+/=?^`{|}~-]+";
const LOCAL = new RegExp(`^(?:${ATOM}(?:\\.${ATOM})*|"(?:[ !#-\\[\\]-~]|\\\\[ -~])*")(?=@)`);
const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/i;

function isIpv6(text) {
  return net.isIPv6(text) && !text.includes("%");
}

// RFC 5321, Mailbox.
export function isEmail(text) {
  const local = LOCAL.exec(text)?.[0];
  if (local === undefined || local.length > 64) return false;
  const domain = text.slice(local.length + 1);
  if (domain.length > 255) return false;
  if (!domain.startsWith("[")) return domain.split(".").every((label) => LABEL.test(label));
  if (!domain.endsWith("]")) return false;
  const literal = domain.slice(1, -1);
  if (literal.startsWith("IPv6:")) return isIpv6(literal.slice(5));
  return net.isIPv4(literal) || /^[a-z0-9-]*[a-z0-9]:[!-Z^-~]+$/i.test(literal);
}

// Characters of RFC 3986: unreserved ones, those with %, sub-delims, and `more`.
function areCharacters(text, more) {
  const plain = text.replace(/%[0-9a-f]{2}/gi, "");
  return [...plain].every((c) => /[\w.~!$&'()*+,;=-]/.test(c) || more.includes(c));
}

function isAuthority(text) {
  const at = text.indexOf("@");
  if (at >= 0 && !areCharacters(text.slice(0, at), ":")) return false;
  const host = text.slice(at + 1);
  if (!host.startsWith("[")) {
    const [name, port, ...others] = host.split(":");
    return others.length === 0 && areCharacters(name, "") && /^\d*$/.test(port ?? "");
  }
  const [, inner, port] = /^\[([^\]]*)\](?::(\d*))?$/.exec(host) ?? [];
  if (inner === undefined) return false;
  const future = /^v[0-9a-f]+\.(.+)$/i.exec(inner);
  if (future) return !future[1].includes("%") && areCharacters(future[1], ":");
  return isIpv6(inner) && /^\d*$/.test(port ?? "");
}

// RFC 3986: the parts as its appendix B divides them, each by its own rule.
export function isUriReference(text) {
  const parts = /^(?:([^:/?#]+):)?(?:\/\/([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?$/s.exec(text);
  const [, scheme, authority, path, query, fragment] = parts;
  if (scheme !== undefined && !/^[a-z][a-z0-9+.-]*$/i.test(scheme)) return false;
  if (authority !== undefined && !(isAuthority(authority) && /^(?:\/|$)/.test(path))) return false;
  if (authority === undefined && path.startsWith("//")) return false;
  // Else it would be a scheme.
  if (scheme === undefined && authority === undefined && path.split("/")[0].includes(":")) return false;
  return (
    areCharacters(path, ":@/") && areCharacters(query ?? "", ":@/?") && areCharacters(fragment ?? "", ":@/?")
  );
}

export function isUri(text) {
  return /^[a-z][a-z0-9+.-]*:/i.test(text) && isUriReference(text);
}
