/* The settings of a conversation (recipe, temperature, maximum tokens, system prompt), and those of
 * the page (theme, API key). */
import {$, el, showText} from "./dom.js";
import {setKey} from "./api.js";

/* Recipes by what they lose, as /v1/models says. */
export const LOSSES = [
  ["none", "Exact"],
  ["minimal", "Nearly exact"],
  ["small", "Small loss"],
  ["large", "Large loss"],
  ["forgets", "Forgets parts of the text"],
];
export const groupRecipes = recipes =>
  LOSSES
    .map(([loss, label]) =>
           ({label, recipes: recipes.filter(recipe => (recipe.loss || "small") === loss)}))
    .filter(group => group.recipes.length > 0);

const FIELDS = ["modelid", "kv", "temperature", "max", "system", "other"];
const NAMES = {
  temperature: "Temperature",
  max: "Maximum tokens"
};

let recipes = [];
export const findRecipe = name => recipes.find(recipe => recipe.name === name);

/* The names of the models: a menu, if there are several. */
export const setModels = names => {
  const chosen = $("modelid").value;
  $("modelid").replaceChildren(...names.map(name => el("option", {value: name}, name)));
  if (names.includes(chosen)) $("modelid").value = chosen;
  $("modelfield").hidden = names.length < 2;
};
const hasModel = name => [...$("modelid").options].some(option => option.value === name);

export const setRecipes = list => {
  const chosen = $("kv").value;
  recipes = list;
  $("kv").replaceChildren(...groupRecipes(list).map(
    group => el("optgroup", {label: group.label},
      ...group.recipes.map(recipe => el("option", {value: recipe.name}, recipe.name)))));
  if (findRecipe(chosen))
    $("kv").value = chosen;
  else if (list[0])
    $("kv").value = list[0].name; /* the server's default */
  showRecipe();
};

const showRecipe = () => {
  const recipe = findRecipe($("kv").value);
  if (!recipe) {
    $("kvtext").textContent = "";
    $("kvfold").hidden = true;
    return;
  }
  $("kvtext").replaceChildren(recipe.note);
  $("kvcode").textContent = recipe.text;
  $("kvfold").hidden = recipe.text === recipe.name && recipes.length > 1;
  $("kvallow").hidden = recipes.length > 1;
};

export const readSettings = () => Object.fromEntries(FIELDS.map(id => [id, $(id).value]));

export const writeSettings = settings => {
  for (const id of FIELDS) {
    if (id === "kv" && recipes.length && !findRecipe(settings.kv)) continue;
    if (id === "modelid" && !hasModel(settings.modelid)) continue;
    $(id).value = settings[id] ?? "";
  }
  checkSettings();
  showRecipe();
};

/* Settings of the last conversation are the default of the next one. */
export const defaultSettings = () => {
  try {
    return JSON.parse(localStorage.getItem("lowkey-settings")) || {};
  } catch { return {}; }
};

/* The object in the field for other fields; null if it is not one. */
const parseOther = text => {
  if (!text?.trim()) return {};
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch { return null; }
};

/* Mark settings that the server would refuse. Returns false if there is one. */
export const checkSettings = () => {
  const problems = [];
  for (const id of ["temperature", "max"]) {
    const {validity, min, max} = $(id);
    $(id).ariaInvalid = String(!validity.valid);
    if (!validity.valid)
      problems.push(id === "max" ?
          `${NAMES[id]} must be a whole number from 1, or empty for no limit.` :
          `${NAMES[id]} must be a number from ${min} to ${
            max}, or empty for the server's default.`);
  }
  const other_is_valid = parseOther($("other").value) !== null;
  $("other").ariaInvalid = String(!other_is_valid);
  if (!other_is_valid)
    problems.push('The other fields must be a JSON object, such as {"top_p": 0.9}.');
  showText($("set-problem"), problems.join(" "));
  return problems.length === 0;
};

/* The fields of a request. Empty ones are left to the server. */
export const requestFields = settings => ({
  ...settings.kv ? {kv: settings.kv} : {},
  ...settings.temperature !== "" ? {temperature: Number(settings.temperature)} : {},
  ...settings.max !== "" ? {max_tokens: Number(settings.max)} : {},
  ...parseOther(settings.other),
});

const darkScreen = matchMedia("(prefers-color-scheme: dark)");
const showTheme = () => {
  const theme = $("theme").value || (darkScreen.matches ? "dark" : "light");
  document.documentElement.toggleAttribute("data-dark", theme === "dark");
};

/* `changed(id)`: a setting of the conversation was changed; `keyChanged()`. */
export const listenSettings = (changed, keyChanged) => {
  $("settings").addEventListener("submit", event => event.preventDefault());
  for (const id of FIELDS) {
    $(id).addEventListener("input", () => {
      checkSettings();
      if (id === "kv") showRecipe();
      localStorage.setItem("lowkey-settings", JSON.stringify(readSettings()));
      changed(id);
    });
  }
  $("theme").value = localStorage.getItem("lowkey-theme") || "";
  $("theme").addEventListener("change", () => {
    localStorage.setItem("lowkey-theme", $("theme").value);
    showTheme();
  });
  darkScreen.addEventListener("change", showTheme);
  showTheme();
  $("apikey").value = sessionStorage.getItem("lowkey-apikey") || "";
  setKey($("apikey").value);
  $("apikey").addEventListener("change", () => {
    sessionStorage.setItem("lowkey-apikey", $("apikey").value);
    setKey($("apikey").value);
    keyChanged();
  });
};
